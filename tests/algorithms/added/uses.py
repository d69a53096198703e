"""Use an added algorithm wherever algorithms are used, and print the results as JSON. The argument is a Redis URL."""

import json
import sys
from fractions import Fraction

from ratekeeper import Limiter, parse, rule
from ratekeeper.http import Headers, HeaderWriter
from ratekeeper.rules import share_of
from ratekeeper.stores import RedisStore
from ratekeeper.testing import ManualClock
from tests.service.serving import InProcess

clock = ManualClock(1_700_000_000)
(made,) = parse("cell-rate 6/minute")
limiter = Limiter({"user": made}, clock=clock)
writer = HeaderWriter(limiter.rules, Headers(legacy=False))
store = RedisStore(sys.argv[1])
on_redis = Limiter(made, store, on_error="raise", deadline=30)
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
            "repr": repr(made),
            "text": made.text,
            "reads back": parse(made.text) == (made,),
            "half of it": share_of(made, Fraction(1, 2)).text,
            "headers": dict(writer.fields(limiter.hit("ada", 2))),
            "name on Redis": inspection.name,
            "words": list(inspection.state),
            "hit": ask("/v1/hit", fields).json(),
            "hit by text": ask("/v1/hit", {"key": "k", "rule": "gcra 6/minute"}).json(),
            "by a limit": ask("/v1/hit", {"key": "k", "algorithm": "Cell_Rate", "limit": 6}).json(),
            "made": rule("cell_rate", limit=6) == made,
            "without a limit": ask("/v1/hit", {"key": "k", "algorithm": "gcra"}).json(),
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
