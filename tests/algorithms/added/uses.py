"""Use an added algorithm wherever algorithms are used, and print the results as JSON. The argument is a Redis URL."""

import json
import sys
from fractions import Fraction

from ratekeeper import Limiter, parse
from ratekeeper.http import Headers, HeaderWriter
from ratekeeper.rules import share_of
from ratekeeper.stores import RedisStore
from ratekeeper.testing import ManualClock
from tests.service.serving import InProcess

clock = ManualClock(1_700_000_000)
(rule,) = parse("cell-rate 6/minute")
limiter = Limiter({"user": rule}, clock=clock)
writer = HeaderWriter(limiter.rules, Headers(legacy=False))
store = RedisStore(sys.argv[1])
on_redis = Limiter(rule, store, on_error="raise", deadline=30)
on_redis.hit("k", 2)
(inspection,) = on_redis.inspect("k").values()
service = InProcess()
fields = {"key": "k", "algorithm": "gcra", "limit": 6, "window": "1m"}
demo = {"config": {"maxRequests": 6, "windowSeconds": 60}}


def ask(path, body=None):
    return service.ask("POST", path, json={} if body is None else body)


print(
    json.dumps(
        {
            "repr": repr(rule),
            "text": rule.text,
            "reads back": parse(rule.text) == (rule,),
            "half of it": share_of(rule, Fraction(1, 2)).text,
            "headers": dict(writer.fields(limiter.hit("ada", 2))),
            "name on Redis": inspection.name,
            "words": list(inspection.state),
            "hit": ask("/v1/hit", fields).json(),
            "hit by text": ask("/v1/hit", {"key": "k", "rule": "gcra 6/minute"}).json(),
            "without a window": ask("/v1/hit", {"key": "k", "algorithm": "gcra", "limit": 6}).json(),
            "with a burst": ask("/v1/hit", {"key": "k", "rule": "gcra 6/minute burst 3"}).json(),
            "described": json.dumps(service.ask("GET", "/openapi.json").json()).count('"gcra"'),
            "listed": [each for each in service.ask("GET", "/api/algorithms").json() if each["algorithm"] == "gcra"],
            "demo": ask("/api/rate-limit/gcra", demo).json(),
            "state": ask("/api/rate-limit/gcra/state", demo).json(),
            "script": service.ask("GET", "/api/script/gcra").text.split("\n", 1)[0],
            "compared": [each["title"] for each in ask("/api/compare").json()["rules"]],
        }
    )
)
store.close()
