"""Requests that wait in a process do not count in its forked child, and no lock of theirs is held there."""

import pytest

from ratekeeper.http import Gate
from ratekeeper.http.backoff import Backoff
from ratekeeper.testing import ManualClock
from tests import inside
from tests.http.requests import a_request
from tests.test_concurrency import ignore_fork_warning, in_a_forked_child, needs_fork

pytestmark = [needs_fork, ignore_fork_warning]

SHAPING = "leaky-bucket 1/s burst 10 shaping"


@pytest.fixture
def gate():
    gate = Gate(SHAPING, max_waiters=1, clock=ManualClock(1000))
    gate.admit(a_request())
    return gate


def test_a_forked_child_counts_no_request_that_its_parent_holds(gate):
    held = gate.admit(a_request())
    assert held.is_held
    assert in_a_forked_child(lambda: gate.admit(a_request()).is_held)


def test_the_parent_goes_on_counting(gate):
    held = gate.admit(a_request())
    in_a_forked_child(lambda: gate.admit(a_request()))
    assert not gate.admit(a_request()).decision.allowed
    gate.leave(held)
    assert gate.admit(a_request()).is_held


def test_a_request_that_was_held_across_a_fork_leaves_no_negative_count(gate):
    held = gate.admit(a_request())

    def leave_and_count():
        gate.leave(held)
        return [gate.admit(a_request()).is_held for _ in range(2)] == [True, False]

    assert in_a_forked_child(leave_and_count)


def test_a_child_that_is_forked_while_requests_are_counted_can_count(gate):
    with inside.lock(inside.held_requests(gate)):
        assert in_a_forked_child(lambda: gate.admit(a_request()).is_held)


def test_a_child_that_is_forked_while_a_key_is_noted_can_note_one():
    clock = ManualClock(1000)
    backoff = Backoff(clock)
    backoff.back_off("k", 5)

    def note_another():
        backoff.back_off("j", 3)
        return [(backoff.until(key) - clock()) / 1e9 for key in "kj"] == [5, 3]

    with inside.lock(backoff):
        assert in_a_forked_child(note_another)
