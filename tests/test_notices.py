"""What the rules in the store did not decide is counted each time and logged once."""

import asyncio
import logging
import os
import signal
import sys
import threading

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, Limiter
from ratekeeper.http import Gate, Route
from ratekeeper.notices import Notices
from tests import servers
from tests.http.requests import a_request

NONE = {"degraded": 0, "skipped": 0, "shared": 0, "unlimited": 0, "shadow_denied": 0}


@pytest.fixture
def gone():
    """The address of a server that is not there."""
    return f"redis://127.0.0.1:{servers.free_port()}"


def lines(caplog):
    """Return what the notices have logged."""
    return [record.getMessage() for record in caplog.records if record.getMessage().endswith("see .notices)")]


def test_a_limiter_that_decides_as_it_should_has_nothing_to_note():
    limiter = Limiter("1/day")
    assert [limiter.hit("k").allowed for _ in range(2)] == [True, False]
    assert limiter.notices.counts == NONE


def test_each_notice_is_counted_and_each_reason_is_logged_once(caplog):
    notices = Notices()
    for _ in range(3):
        notices.note("shared", "no key; name one", detail="GET /")
    notices.note("skipped", "no key; name one", 5)
    notices.note("skipped", "another", 0)
    assert notices.counts == {"degraded": 0, "skipped": 5, "shared": 3, "unlimited": 0, "shadow_denied": 0}
    assert [record.getMessage() for record in caplog.records] == [
        "shared: no key; name one: GET / (logged once; see .notices)",
        "skipped: no key; name one (logged once; see .notices)",
        "skipped: another (logged once; see .notices)",
    ]
    assert {(record.name, record.levelno) for record in caplog.records} == {("ratekeeper", logging.WARNING)}


def test_reasons_without_end_are_counted_and_neither_kept_nor_logged_without_end(caplog):
    notices = Notices()
    for number in range(1000):
        notices.note("shared", f"reason {number}")
    assert notices.counts["shared"] == 1000
    assert len(caplog.records) == 101
    assert caplog.records[-1].getMessage().startswith("shared: further reasons are counted and not logged")
    assert len(notices._logged) == 101  # noqa: SLF001 - what it keeps must be bounded, too


def test_threads_lose_no_count_and_log_one_line(caplog):
    notices = Notices()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [notices.note("degraded", "why") for _ in range(5000)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert notices.counts["degraded"] == 40_000
    assert len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no timer signals")
def test_a_signal_handler_may_note_while_its_thread_notes():
    notices = Notices()
    from_handler = 0

    def handler(*_):
        nonlocal from_handler
        notices.note("degraded", "why", 2)
        from_handler += 1

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    noted = 0
    try:
        while from_handler < 200:
            notices.note("degraded", "why")
            noted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert notices.counts["degraded"] == noted + 2 * from_handler


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_that_is_forked_while_others_note_notes_too():
    notices = Notices()
    going = threading.Event()

    def note():
        while not going.is_set():
            notices.note("degraded", "why")

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                before = notices.counts["degraded"]
                notices.note("degraded", "another")
                os._exit(0 if notices.counts["degraded"] == before + 1 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        going.set()
        for thread in threads:
            thread.join()


def test_a_limiter_that_is_switched_off_counts_each_decision_and_says_so_once(caplog):
    limiter = Limiter("1/day", enabled=False)
    assert not caplog.records
    assert limiter.hit("k").allowed
    assert limiter.peek("k").allowed
    assert limiter.take("k").decision.allowed
    assert limiter.wait("k").allowed
    assert limiter.notices.counts == {**NONE, "unlimited": 4}
    assert lines(caplog) == [
        "unlimited: enabled=False admits everything; set enabled=True to enforce the rules (logged once; see .notices)"
    ]


def test_an_async_limiter_that_is_switched_off_counts_too():
    async def scenario():
        limiter = AsyncLimiter("1/day", enabled=False)
        for call in (limiter.hit, limiter.peek, limiter.take, limiter.wait):
            await call("k")
        return limiter.notices.counts

    assert asyncio.run(scenario()) == {**NONE, "unlimited": 4}


@pytest.mark.parametrize(
    ("on_error", "consequence"),
    [
        ("local", "this process enforces the rules alone meanwhile"),
        ("open", "everything is admitted meanwhile"),
        ("closed", "everything is denied meanwhile"),
    ],
)
def test_each_decision_of_the_fallback_is_counted_and_each_reason_logged_once(gone, caplog, on_error, consequence):
    limiter = Limiter("5/day", gone, on_error=on_error)
    assert all(limiter.hit("k").degraded for _ in range(3))
    limiter.peek("k")
    assert limiter.notices.counts == {**NONE, "degraded": 4}
    assert len(lines(caplog)) <= 2  # the store could not be reached, and was not asked again
    assert all(line.startswith("degraded: ") and consequence in line for line in lines(caplog))


def test_an_error_that_is_raised_is_not_a_decision(gone):
    limiter = Limiter("5/day", gone, on_error="raise")
    with pytest.raises(Exception, match="Redis"):
        limiter.hit("k")
    assert limiter.notices.counts == NONE


def test_a_log_that_raises_fails_no_decision(gone):
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError(record)

    log, broken = logging.getLogger("ratekeeper"), Broken()
    log.addHandler(broken)
    try:
        limiter = Limiter("1/day", enabled=False)
        assert limiter.hit("k").allowed
        assert limiter.notices.counts["unlimited"] == 1
    finally:
        log.removeHandler(broken)


def test_limiters_may_share_their_notices(caplog):
    notices = Notices()
    limiters = [Limiter("1/day", enabled=False, notices=notices) for _ in range(3)]
    for limiter in limiters:
        assert limiter.notices is notices
        limiter.hit("k")
    assert notices.counts["unlimited"] == 3
    assert len(lines(caplog)) == 1


def test_a_gate_counts_for_its_limiters_and_for_those_it_was_given(gone, caplog):
    off = Limiter(FixedWindow(1, 60), enabled=False)
    gate = Gate("5/day", routes=[Route("/off", off), Route("/away", "7/day")], store=gone)
    for path in ("/", "/away", "/off", "/off"):
        gate.admit(a_request(path=path))
    assert gate.notices.counts == {**NONE, "degraded": 2, "unlimited": 2}
    assert off.notices.counts == {**NONE, "unlimited": 2}
    assert len([line for line in lines(caplog) if line.startswith("unlimited")]) == 1
