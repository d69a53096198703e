"""When tasks over a limit get their turn, whatever queue they are in; `tests.workers` has real queues."""

import heapq

import pytest

from ratekeeper import AsyncLimiter, InvalidRule, Limiter, RateLimited
from ratekeeper.flows import run
from ratekeeper.integrations.postponing import TaskLimit
from ratekeeper.policies import Policies
from ratekeeper.testing import ManualClock

RULES = [
    "fixed-window 10/s",
    "sliding-window-log 10/s",
    "sliding-window-counter 10/s",
    "token-bucket 10/s",
    "leaky-bucket 10/s",
]


@pytest.fixture
def clock():
    return ManualClock()


def task_limit(limit, store=None, *, kind=Limiter, key=None, cost=1, enabled=True):
    return TaskLimit(limit, store, kind=kind, key=key, cost=cost, enabled=enabled)


def ask(limit, *args):
    """Ask for a task; return the seconds until its turn, None if it is admitted."""
    postponed = run(limit.ask("task", args, {}))
    return None if postponed is None else postponed.seconds


def test_tasks_that_are_denied_together_get_turns_one_after_another_at_the_rate_of_the_rule(clock):
    limit = task_limit(Limiter("token-bucket 10/s", clock=clock))
    assert [ask(limit) for _ in range(14)] == [None] * 10 + [0.101, 0.201, 0.301, 0.401]


def test_a_task_that_costs_more_holds_up_those_behind_it_for_longer(clock):
    limit = task_limit(Limiter("token-bucket 10/s", clock=clock), cost=lambda cost: cost)
    assert [ask(limit, cost) for cost in (10, 5, 1, 1)] == [None, 0.501, 0.601, 0.701]


def test_each_key_has_a_line_of_its_own(clock):
    limit = task_limit(Limiter("token-bucket 1/s", clock=clock), key=lambda customer: customer)
    assert [ask(limit, customer) for customer in "aaabbb"] == [None, 1.001, 2.001] * 2


def test_of_several_rules_the_one_that_denies_has_the_line(clock):
    limiter = Limiter({"all": "token-bucket 2/s burst 4", "own": "token-bucket 1/s burst 2"}, clock=clock)
    limit = task_limit(limiter, key=lambda customer: {"all": "all", "own": customer}, cost={"own": 2})
    assert [ask(limit, customer) for customer in "aaa"] == [None, 2.001, 4.001]
    assert [ask(limit, customer) for customer in "bcdef"] == [None, None, None, 0.501, 1.001]


@pytest.mark.parametrize("rules", RULES)
def test_a_long_backlog_uses_the_whole_rate_and_asks_little_more_than_twice_for_each_task(rules, clock):
    limit = task_limit(Limiter(rules, clock=clock))
    now, asked = 0.0, 0
    backlog = [(now, number) for number in range(300)]
    while backlog:
        at, number = heapq.heappop(backlog)
        clock.advance(max(0.0, at - now))
        now = max(now, at)
        asked += 1
        seconds = ask(limit)
        if seconds is not None:
            heapq.heappush(backlog, (now + seconds, number))
    assert asked <= 700
    assert now <= 30.5


@pytest.mark.parametrize("rules", [*RULES, "7/3s", "token-bucket 3/7s burst 2", "sliding-window-log 1/333us"])
def test_a_task_that_comes_back_when_it_should_is_admitted(rules, clock):
    limit = task_limit(Limiter(rules, clock=clock))
    while (seconds := ask(limit)) is None:
        clock.advance(0.000_01)
    clock.advance(seconds)
    assert ask(limit) is None


def test_a_very_long_line_puts_nobody_off_for_ever(clock):
    limit = task_limit(Limiter("token-bucket 1/year", clock=clock))
    turns = [ask(limit) for _ in range(200)]
    year = 365 * 86400
    assert turns[1:100] == [turn * year + 0.001 for turn in range(1, 100)]
    assert turns[-1] < 200 * year


def test_a_task_that_can_never_be_admitted_raises(clock):
    with pytest.raises(RateLimited, match="the cost can never fit into 5"):
        ask(task_limit(Limiter("5/s", clock=clock), cost=6))


def test_rules_that_follow_a_policy_have_a_line(tmp_path, clock):
    path = tmp_path / "limits.toml"
    path.write_text('[policies.mail]\nrules = [{name = "each", key = "{user}", limit = "token-bucket 1/s"}]\n')
    limiter = Policies.load(path).limiter("mail", clock=clock)
    limit = task_limit(limiter, key=lambda user: {"user": user, "plan": "free"})
    assert [ask(limit, user) for user in "aab"] == [None, 1.001, None]


def test_limits_that_are_switched_off_need_no_store_and_admit_everything():
    limit = task_limit("1/day", enabled=False)
    assert [ask(limit) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": "10/s"}, "rules need a store that all workers share, such as store='redis://localhost'"),
        ({"limit": Limiter("10/s"), "store": "memory://"}, "store cannot be combined with a limiter"),
        ({"limit": Limiter("10/s"), "enabled": False}, "enabled belongs to the limiter here"),
        ({"limit": AsyncLimiter("10/s")}, "limit must be rules or of type Limiter here"),
        (
            {"limit": "leaky-bucket 10/s burst 5 shaping", "store": "memory://"},
            "tasks are postponed, not held; write 'leaky-bucket 10/s burst 1' instead",
        ),
        ({"limit": "10/s", "store": "memory://", "cost": {"another": 1}}, "names an unknown rule 'another'"),
        ({"limit": "10/s", "store": "memory://", "enabled": "no"}, "enabled must be True or False"),
    ],
)
def test_a_mistake_is_found_where_the_limit_is_declared(arguments, message):
    with pytest.raises((InvalidRule, TypeError)) as error:
        task_limit(**arguments)
    assert message in str(error.value)
