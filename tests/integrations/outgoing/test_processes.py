"""Several processes share one budget through Redis: the server never sees more than the rule admits."""

import itertools
import multiprocessing

import pytest

from ratekeeper import SlidingWindowLog
from tests import servers
from tests.integrations.outgoing.faces import FACES, awaited
from tests.integrations.outgoing.origin import Origin
from tests.waiters import until

LIMIT, WINDOW, PROCESSES, EACH = 5, 0.05, 4, 10
START_NS = 1_700_000_040 * 10**9
_numbers = itertools.count()


def send(face_name, url, redis, prefix, now_ns):
    face = FACES[face_name]
    limiter = face.limiter_class(
        SlidingWindowLog(LIMIT, WINDOW),
        redis,
        clock=lambda: now_ns.value,
        prefix=prefix,
        on_error="raise",
        deadline=5,
    )
    to = face(limiter)
    for _ in range(EACH):
        assert to.request("GET", url).status == 200
    to.close()
    closing = limiter.close()
    if closing is not None:
        awaited(closing)


@pytest.mark.parametrize("names", [["httpx"], ["httpx async"], ["requests"], list(FACES)], ids=" and ".join)
def test_processes_never_send_more_together_than_the_rule_admits(names):
    processes = multiprocessing.get_context("spawn")
    now_ns = processes.Value("q", START_NS)  # moved by the test alone
    origin = Origin(lambda: (now_ns.value - START_NS) / 1e9)
    arguments = origin.url, servers.shared(servers.newest()).url, f"processes {next(_numbers)}", now_ns
    senders = [
        processes.Process(target=send, args=(name, *arguments))
        for name in itertools.islice(itertools.cycle(names), PROCESSES)
    ]
    try:
        for sender in senders:
            sender.start()
        for sent in range(LIMIT, PROCESSES * EACH + 1, LIMIT):
            until(lambda sent=sent: len(origin.arrivals) >= sent, f"request {sent}")
            now_ns.value += round(WINDOW * 1e9)
        for sender in senders:
            sender.join(30)
    finally:
        for sender in senders:
            sender.kill()
        origin.stop()
    assert [sender.exitcode for sender in senders] == [0] * PROCESSES
    assert sorted(origin.times) == [
        pytest.approx(instant * WINDOW) for instant in range(PROCESSES * EACH // LIMIT) for _ in range(LIMIT)
    ]
