"""A caller without the token chooses rules, names, keys and costs. No choice changes the usage of another rule."""

import itertools

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratekeeper import AsyncLimiter, FixedWindow, TokenBucket
from ratekeeper.algorithms import ALGORITHMS, all_of
from ratekeeper.service.app import create_app
from ratekeeper.stores import AsyncRedisStore, MemoryStore
from tests import servers
from tests.faces import loop

A_MONTH_US = 30 * 86_400_000_000
RULES = all_of(10, A_MONTH_US)  # the victims, each with 4 of 10 in use
OTHERS = [  # what an attacker would rather have under a victim's name
    *(algorithm.of(10**6, 1) for algorithm in ALGORITHMS),
    *(algorithm.of(1, A_MONTH_US) for algorithm in ALGORITHMS),
    TokenBucket(10**12, 10**6),
    FixedWindow(10, "29d"),
]
USERS = [f"user {number}" for number in range(len(RULES))]  # the names that the application gives them
NAMES = [*USERS, *(f"api/{name}" for name in USERS), *(rule.text for rule in RULES)]
OPEN = ["hit", "peek"]
NEED_THE_TOKEN = ["charge", "refund", "reset", "inspect"]
numbers = itertools.count()


class Shared:
    """The service, and an application whose limiters use the same store."""

    def __init__(self, store):
        self.app = create_app(store, token="open sesame", deadline=30)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://localhost")
        self.victims = {
            (name, rule.text): AsyncLimiter(named, store, on_error="raise", deadline=30)
            for user, rule in zip(USERS, RULES, strict=True)
            for name, named in {user: {user: rule}, f"api/{user}": {f"api/{user}": rule}, "": rule}.items()
        }

    async def usage(self, key):
        return {name: 10 - (await victim.peek(key)).remaining for name, victim in self.victims.items()}


@pytest.fixture(scope="module", params=["memory", "Redis"])
def shared(request):
    url = servers.shared(servers.newest()).url
    shared = Shared(MemoryStore() if request.param == "memory" else AsyncRedisStore(url))
    yield shared
    loop.run_until_complete(shared.app.close())


texts = st.sampled_from([rule.text for rule in (*RULES, *OTHERS)])
names = st.sampled_from(NAMES) | st.text(min_size=1, max_size=5)
asked = st.fixed_dictionaries({"rule": texts}) | st.fixed_dictionaries(
    {"rules": st.dictionaries(names, texts, min_size=1, max_size=3)}
)
calls = st.tuples(st.sampled_from([*OPEN, *NEED_THE_TOKEN]), asked, st.sampled_from([1, 2, 3, 11, 10**12, 2**63]))
RESETS = [("hit", {"rules": {rule.text: other.text}}, 1) for rule in RULES for other in OTHERS]
LOCKS_OUT = [("hit", {"rules": {name: "token-bucket 1000000/s burst 1000000000000"}}, 10**12) for name in NAMES]


@given(calls=st.lists(calls, max_size=8))
@example(calls=RESETS)
@example(calls=LOCKS_OUT)
def test_a_caller_without_the_token_changes_no_other_rules_usage(shared, calls):
    key = f"ada {next(numbers)}"

    async def attack():
        for victim in shared.victims.values():
            await victim.hit(key, 4)
        expected = await shared.usage(key)
        assert set(expected.values()) == {4}
        for operation, given_rules, cost in calls:
            answer = await shared.client.post(f"/v1/{operation}", json={"key": key, "cost": cost, **given_rules})
            assert answer.status_code in ((401,) if operation in NEED_THE_TOKEN else (200, 400, 429))
            if operation == "hit" and answer.status_code == 200:
                for text in given_rules.get("rules", given_rules).values():
                    if ("", text) in expected:  # the same rule, which it may hit
                        expected["", text] += cost
        assert await shared.usage(key) == expected

    loop.run_until_complete(attack())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_a_visitor_of_the_playground_changes_no_other_rules_usage(shared, rule):
    async def attack():
        for victim in shared.victims.values():
            await victim.hit("ada", 4)
        before = await shared.usage("ada")
        for path in (rule.algorithm, f"{rule.algorithm}/burst", f"{rule.algorithm}/state", "reset"):
            body = {} if path == "reset" else {"config": {}, "cost": 3}
            answer = await shared.client.post(f"/api/rate-limit/{path}", json=body)
            assert answer.status_code == 200
        assert await shared.usage("ada") == before

    loop.run_until_complete(attack())
