import pytest

from ratekeeper import FixedWindow, TokenBucket
from ratekeeper.stores.eviction import NEVER, EvictionQueue
from ratekeeper.stores.protocol import Binding

SECOND = 1_000_000
MINUTE = 60 * SECOND


def binding_of(rule, name="user", group=None):
    return Binding(name, rule, ("ratekeeper", rule.algorithm, name), group)


def queue_of(*rules, max_keys=1000):
    """An EvictionQueue, and its table for a name under which these rules are in force."""
    queue = EvictionQueue(max_keys)
    return queue, [queue.bind(binding_of(rule)) for rule in rules][-1]


def filled(count, *, max_keys=1000, rule=None, cost=1):
    """EvictionQueue with keys 0, 1, ... of one rule, all used at time 0."""
    queue, table = queue_of(rule or FixedWindow(10, 60), max_keys=max_keys)
    for key in range(count):
        queue.add(table, key, table.rule.charge(None, 0, cost), 0)
    return queue, table


def stored(queue):
    return sum(len(table.states) for table in queue.tables.values())


def test_nothing_is_due_where_nothing_is_stored():
    assert EvictionQueue(10).due == NEVER


def test_keys_are_due_when_they_expire():
    queue, _ = filled(3)
    assert queue.due == MINUTE


def test_due_is_at_most_an_eighth_of_the_span_later_than_the_expiry():
    queue, _ = filled(1, rule=TokenBucket(80, 1), cost=41)
    assert queue.due == 50 * SECOND


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_a_call_forgets_eight_expired_keys_at_most(calls):
    queue, _ = filled(100)
    for _ in range(calls):
        queue.collect(MINUTE)
    assert stored(queue) == 100 - 8 * calls


def test_what_has_not_expired_stays():
    queue, _ = filled(20)
    queue.collect(MINUTE - 1)
    assert stored(queue) == 20


def test_once_all_have_left_nothing_is_due():
    queue, table = filled(20)
    for _ in range(4):
        queue.collect(MINUTE)
    assert (stored(queue), table.states, table.cohorts, queue.due) == (0, {}, {}, NEVER)


def test_a_key_that_was_used_again_is_put_where_it_belongs_by_then():
    queue, table = filled(2)
    table.states[0] = table.rule.charge(None, MINUTE, 1)
    queue.collect(MINUTE)
    assert list(table.states) == [0]
    assert queue.due == 2 * MINUTE
    queue.collect(2 * MINUTE)
    assert stored(queue) == 0


def test_clear_forgets_all_keys_and_keeps_the_count_of_evictions():
    queue, _ = filled(20, max_keys=10)
    queue.clear()
    assert (stored(queue), queue.due, queue.evictions) == (0, NEVER, 10)


@pytest.mark.parametrize(
    "rules", [(FixedWindow(10, 3600), FixedWindow(10, 60)), (FixedWindow(10, 60), FixedWindow(10, 3600))]
)
def test_a_state_ends_when_it_has_ended_for_all_rules_under_its_name(rules):
    queue, table = queue_of(*rules)
    queue.add(table, "a", rules[0].charge(None, 0, 1), 0)
    queue.collect(MINUTE)
    assert stored(queue) == 1
    queue.collect(60 * MINUTE)
    assert stored(queue) == 0


def test_a_rule_that_no_limiter_has_any_more_prolongs_no_state_of_another():
    longer, shorter = binding_of(FixedWindow(10, 3600)), binding_of(FixedWindow(10, 60))
    queue = EvictionQueue(10)
    table = queue.bind(longer)
    queue.bind(shorter)
    table.unbind(longer)
    queue.add(table, "a", shorter.rule.charge(None, 0, 1), 0)
    queue.collect(MINUTE)
    assert stored(queue) == 0


def test_the_states_of_a_name_that_no_limiter_has_any_more_end_as_the_last_of_its_rules_says():
    queue, table = filled(1)
    for binding in list(table.bindings.values()):
        table.unbind(binding)
    queue.collect(MINUTE - 1)
    assert stored(queue) == 1
    queue.collect(MINUTE)
    assert stored(queue) == 0


def test_many_limiters_of_one_rule_are_noted_in_linear_time():
    queue = EvictionQueue(10)
    compared = []

    class Compared(FixedWindow):
        def __hash__(self):
            compared.append(self)
            return super().__hash__()

        def __eq__(self, other):
            compared.append(self)
            return super().__eq__(other)

    bindings = [binding_of(Compared(10, 60)) for _ in range(300)]
    for binding in bindings:
        queue.bind(binding)
    for binding in bindings:
        queue.unbind(binding)
    assert len(compared) <= 1_000
    assert queue.tables == {}


def test_the_share_that_counts_is_the_largest_of_all_rules_under_a_name():
    queue, table = queue_of(FixedWindow(1000, 60), FixedWindow(10, 60), max_keys=2)
    for key, cost in {"five": 5, "nine": 9, "seven": 7}.items():
        queue.add(table, key, FixedWindow(10, 60).charge(None, 0, cost), 0)
    assert sorted(table.states) == ["nine", "seven"]


def test_the_smallest_share_goes_whatever_cohort_it_is_in():
    queue, table = filled(0, max_keys=4)
    for key, cost in {"a": 9, "b": 3, "c": 6, "d": 8}.items():
        queue.add(table, key, table.rule.charge(None, 0, cost), 0)
    for newcomer, cost, gone in [("e", 7, "b"), ("f", 10, "c"), ("g", 1, "g"), ("h", 8, "e")]:
        queue.add(table, newcomer, table.rule.charge(None, 0, cost), 0)
        assert gone not in table.states
        assert stored(queue) == 4
    assert queue.evictions == 4


def test_a_key_whose_share_has_grown_since_it_was_placed_is_not_taken_for_a_light_one():
    queue, table = filled(0, max_keys=2)
    queue.add(table, "grown", table.rule.charge(None, 0, 1), 0)
    queue.add(table, "five", table.rule.charge(None, 0, 5), 0)
    table.states["grown"] = table.rule.charge(table.states["grown"], 0, 8)
    queue.add(table, "six", table.rule.charge(None, 0, 6), 0)
    assert sorted(table.states) == ["grown", "six"]
