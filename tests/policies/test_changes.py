"""Policies change while calls run: all or nothing, with the usage of before."""

import asyncio
import gc
import itertools
import threading

import pytest

from ratekeeper import InvalidRule, Limiter, RateLimited
from ratekeeper.policies import InvalidPolicies, Policies
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import ManualClock
from tests import inside, servers
from tests.waiters import Call, in_queue, until

ADA = {"user": "ada"}


def text(user="fixed-window 10/minute", every="fixed-window 100/minute", more="", key="{user}"):
    return f"""
[policies.api]
{more}
[[policies.api.rules]]
name = "user"
limit = "{user}"
key = "{key}"
[[policies.api.rules]]
name = "all"
limit = "{every}"
key = "all"
"""


@pytest.fixture
def policies():
    return Policies.load(text(), clock=ManualClock(0))


@pytest.fixture
def limiter(policies):
    return policies.limiter("api", clock=ManualClock(0))


def remaining(limiter, attributes=ADA):
    return {name: layer.remaining for name, layer in limiter.peek(attributes).layers.items()}


def test_a_changed_limit_takes_the_usage_over(policies, limiter):
    limiter.hit(ADA, 7)
    policies.replace(text(user="fixed-window 12/minute"))
    assert remaining(limiter) == {"user": 5, "all": 93}
    policies.replace(Policies.load(text(user="fixed-window 5/minute")))
    assert remaining(limiter) == {"user": 0, "all": 93}
    assert policies.text == text(user="fixed-window 5/minute")


def test_another_window_or_algorithm_is_stored_apart_and_resets_nothing(policies, limiter):
    limiter.hit(ADA, 7)
    for user in ("fixed-window 10/hour", "sliding-window-log 10/minute", "token-bucket 10/minute"):
        policies.replace(text(user=user))
        assert remaining(limiter) == {"user": 10, "all": 93}
        limiter.hit(ADA | {"x": 1}, {"all": 0, "user": 2})
        policies.replace(text(user=user.replace("10/", "20/")))
        assert remaining(limiter) == {"user": 18, "all": 93}
    policies.replace(text())
    assert remaining(limiter) == {"user": 3, "all": 93}


def test_buckets_take_the_level_over_at_any_rate(policies, limiter):
    policies.replace(text(user="token-bucket 10/minute burst 10"))
    limiter.hit(ADA, 4)
    policies.replace(text(user="token-bucket 10/s burst 8"))
    assert remaining(limiter)["user"] == 4


@pytest.mark.parametrize("bad", ["[policies", "[policies.api]\n", text(user="10/minit"), text(more="x = 1"), ""])
def test_a_bad_file_changes_nothing(policies, limiter, bad):
    limiter.hit(ADA, 7)
    with pytest.raises(InvalidPolicies):
        policies.replace(bad, "toml")
    assert (remaining(limiter), policies.text) == ({"user": 3, "all": 93}, text())


def test_what_one_limiter_cannot_enforce_changes_none(policies):
    first = policies.limiter("api")
    share = policies.limiter("api", local_share=1e-6)
    with pytest.raises(InvalidRule, match="local_share"):
        policies.replace(text(user="token-bucket 1/1000s"))
    assert [each.rules["user"].limit for each in (first, share)] == [10, 10]


def test_a_file_is_read_again(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(text())
    policies = Policies.load(path)
    limiter = policies.limiter("api")
    assert policies.reload() is False
    path.write_text(text(user="fixed-window 3/minute"))
    assert policies.reload() is True
    assert limiter.peek(ADA).limit == 3
    path.write_text(text(user="fixed-window 3/minit"))
    with pytest.raises(InvalidPolicies, match=r"limits\.toml: line 6: policies\.api\.rules"):
        policies.reload()
    path.unlink()
    with pytest.raises(InvalidPolicies, match="cannot be read"):
        policies.reload()
    assert limiter.peek(ADA).limit == 3
    with pytest.raises(InvalidRule, match="loaded from a text"):
        Policies.load(text()).reload()


def test_a_new_policy_can_be_used_and_one_that_is_gone_stays_in_force(policies, limiter):
    policies.replace(text().replace("policies.api", "policies.web"))
    assert policies.limiter("web").hit(ADA).limit == 10
    assert [limiter.hit(ADA, 10).allowed for _ in range(2)] == [True, False]
    with pytest.raises(InvalidRule, match="policy 'api' is unknown"):
        policies.limiter("api")


def test_shadow_and_words_change(policies, limiter):
    limiter.hit(ADA, 10)
    policies.replace(text(more="shadow = true"))
    assert limiter.hit(ADA).shadow_denied == ("user",)
    assert limiter.shadow == {"user", "all"}
    policies.replace(text(user="blocked"))
    assert limiter.hit(ADA).advice == "blocked"
    policies.replace(text(user="unlimited"))
    assert limiter.hit(ADA).rule == "all"
    policies.replace(text())
    assert not limiter.hit(ADA)


def test_on_error_changes_with_the_file_unless_the_limiter_has_its_own():
    policies = Policies.load(text(more='on_error = "open"'))
    gone = f"redis://127.0.0.1:{servers.free_port()}"
    limiter, own = policies.limiter("api", gone), policies.limiter("api", gone, on_error="closed")

    def asked():
        return [limiter.hit(ADA, 11).allowed, own.hit(ADA, 11).allowed]

    assert asked() == [True, False]
    policies.replace(text(more='on_error = "closed"'))
    assert asked() == [False, False]
    policies.replace(text())  # local: this process enforces the rules
    assert (asked(), limiter.hit(ADA).allowed) == ([False, False], True)
    policies.replace(text(user="fixed-window 11/minute"))
    assert limiter.hit(ADA, 10).allowed
    assert not limiter.hit(ADA, 1).allowed


def test_a_reservation_is_corrected_by_what_charged_it(policies, limiter):
    taken = limiter.take(ADA, 4)
    policies.replace('[[policies.api.rules]]\nname = "other"\nlimit = "1/s"\nkey = "{tenant}"')
    taken.correct({"user": 2, "all": 9})
    taken.correct(3)
    policies.replace(text())
    assert remaining(limiter) == {"user": 7, "all": 97}
    taken.give_back()
    assert remaining(limiter) == {"user": 10, "all": 100}


def test_who_waits_is_served_by_the_version_it_came_under(policies):
    clock = ManualClock(0)
    limiter = policies.limiter("api", clock=clock)
    limiter.hit(ADA, 10)
    call = Call(limiter.wait, ADA)
    until(lambda: in_queue(limiter) == 1, "ada waits")
    policies.replace(text(user="fixed-window 10/hour"))
    assert limiter.hit(ADA).remaining == 9
    clock.advance(60)
    assert call.outcome().limit == 10
    assert limiter.peek(ADA).layers["user"].remaining == 9  # of the hour


def test_a_rule_begins_to_shape(policies, limiter):
    policies.replace(text(user="leaky-bucket 1/s burst 3 shaping"))
    assert [limiter.hit(ADA).delay for _ in range(2)] == [0.0, 1.0]
    with pytest.raises(RateLimited):
        limiter.wait(ADA, timeout=1)


def test_each_call_is_decided_by_one_version(policies):
    limiter = policies.limiter("api")
    versions = [(f"fixed-window {limit}/minute", f"fixed-window {10 * limit}/minute") for limit in (10**6, 2 * 10**6)]
    policies.replace(text(*versions[0]))
    seen, failed, done = set(), [], threading.Event()

    def call(operation):
        try:
            while not done.is_set():
                decision = operation(ADA)
                decision = getattr(decision, "decision", decision)
                seen.add(tuple(layer.limit for layer in decision.layers.values()))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=call, args=[each]) for each in (limiter.hit, limiter.peek, limiter.take)]
    for thread in threads:
        thread.start()
    for version, _ in zip(itertools.cycle(versions), range(100), strict=False):
        policies.replace(text(*version))
        policies.set_override("x", policy="api", when={"user": "bob"}, limits="blocked", expires_in=60)
    done.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert seen <= {(10**6, 10**7), (2 * 10**6, 2 * 10**7)}


def test_the_store_forgets_the_rules_of_versions_that_are_gone(policies):
    store = MemoryStore()
    limiter = policies.limiter("api", store)
    before = inside.bindings(store)
    for limit in range(1, 100):
        policies.replace(text(user=f"fixed-window {limit}/minute", every=f"fixed-window {limit}/hour"))
        limiter.hit(ADA)
    Limiter("1/s", store)  # the next limiter clears up
    gc.collect()
    Limiter("1/s", store)
    assert inside.bindings(store) <= before + 2
    del limiter
    gc.collect()
    Limiter("1/s", store)
    gc.collect()
    Limiter("1/s", store)
    assert inside.bindings(store) <= 2


def test_a_limiter_that_is_gone_follows_no_more(policies):
    limiter = policies.limiter("api")
    limiter.hit(ADA)
    del limiter
    gc.collect()
    assert inside.followers(policies) == 0


def test_memory_is_bounded_by_the_store():
    policies = Policies.load(text(user="1/day"))
    store = MemoryStore(max_keys=1000)
    limiter = policies.limiter("api", store)
    for number in range(100_000):
        limiter.hit({"user": number, "other": f"{number}"}, {"all": 0})
    assert store.size <= 1000


# Runtime overrides.


def set_override(policies, name="vip", limits="unlimited", expires_in=60, **when):
    return policies.set_override(name, policy="api", when=when, limits=limits, expires_in=expires_in)


def test_an_override_comes_first_and_ends_by_itself():
    clock = ManualClock(0)
    policies = Policies.load(
        text() + '[[policies.api.overrides]]\nwhen = { user = "ada" }\nlimits = "blocked"', clock=clock
    )
    limiter = policies.limiter("api", clock=clock)
    assert not limiter.hit(ADA)
    set_override(policies, user="ada")
    assert limiter.hit(ADA).limit is None
    set_override(policies, "newer", {"user": "fixed-window 77/minute"}, 30, user="a*")
    assert limiter.hit(ADA).layers["user"].limit == 77
    assert [each.id for each in policies.overrides] == ["newer", "vip"]
    clock.advance(29.999999)
    assert limiter.hit(ADA).layers["user"].limit == 77
    clock.advance(0.000001)
    assert limiter.hit(ADA).limit is None
    clock.advance(30)
    assert not limiter.hit(ADA)
    assert policies.overrides == []


def test_an_override_can_be_replaced_and_removed(policies, limiter):
    set_override(policies, limits="blocked", user="ada")
    set_override(policies, "other", user="bob")
    set_override(policies, limits={"user": "fixed-window 1/minute"}, user="ada")
    assert [each.id for each in policies.overrides] == ["vip", "other"]
    assert limiter.peek(ADA).limit == 1
    assert (policies.remove_override("vip"), policies.remove_override("vip")) == (True, False)
    assert limiter.peek(ADA).limit == 10


def test_overrides_outlive_a_new_file(policies, limiter):
    set_override(policies, limits={"user": "blocked", "all": "unlimited"}, user="ada")
    policies.replace(text(user="fixed-window 3/minute"))
    assert not limiter.hit(ADA)
    policies.replace('[[policies.api.rules]]\nname = "other"\nlimit = "9/s"\nkey = "all"')
    assert limiter.hit(ADA).rule == "other"


def test_usage_counts_on_after_an_override_has_ended(policies, limiter):
    limiter.hit(ADA, 4)
    set_override(policies, limits={"user": "fixed-window 20/minute"}, user="ada")
    limiter.hit(ADA, 5)
    policies.remove_override("vip")
    assert remaining(limiter)["user"] == 1


def test_a_bad_override_is_refused_with_all_its_mistakes(policies, limiter):
    with pytest.raises(InvalidPolicies) as raised:
        policies.set_override("a b", policy="appi", when={}, limits="blocked", expires_in=0)
    assert [each.place for each in raised.value.mistakes] == ["id", "policy", "expires_in"]
    assert raised.value.mistakes[1].suggestion == "api"
    with pytest.raises(InvalidPolicies) as raised:
        policies.set_override("x", policy="api", when={"a": []}, limits={"usr": "5/s", "all": "5/x"}, expires_in=1)
    assert [each.place for each in raised.value.mistakes] == ["when.a", "limits.usr", "limits.all"]
    assert limiter.peek(ADA).limit == 10


@pytest.mark.parametrize("expires_in", [True, "60", None, -1, float("nan"), float("inf"), 10**12])
def test_an_override_ends(policies, expires_in):
    with pytest.raises(InvalidPolicies, match="expires_in: must be a number of seconds above 0"):
        set_override(policies, expires_in=expires_in, user="ada")


def test_ten_thousand_overrides_are_kept_and_no_more(policies, limiter):
    one = set_override(policies, user="x")
    many = [
        type(one)(f"o{number}", "api", type(one.when)({"user": (f"u{number}",)}), "blocked", one.ends_ns)
        for number in range(10_000)
    ]
    policies.replace_overrides(many)
    assert [limiter.hit({"user": user}).allowed for user in ("u0", "u9999", "u10000")] == [False, False, True]
    with pytest.raises(InvalidRule, match="at most 10000 runtime overrides"):
        set_override(policies, user="y")
    assert len(policies.overrides) == 10_000


def test_a_change_reaches_limiters_of_event_loops():
    async def main():
        policies = Policies.load(text())
        limiter = policies.async_limiter("api")
        taken = await limiter.take(ADA, 4)
        policies.replace(text(user="fixed-window 5/minute"))
        assert (await limiter.peek(ADA)).remaining == 1
        await taken.give_back()
        set_override(policies, user="ada")
        assert (await limiter.hit(ADA)).limit is None

    asyncio.run(main())
