"""Several processes share one budget through Redis: the server never sees more than the rule admits."""

import itertools
import multiprocessing

import httpx
import pytest

from ratekeeper import Limiter, SlidingWindowLog
from ratekeeper.http import with_headroom
from ratekeeper.integrations.httpx import LimitedTransport
from tests import servers
from tests.integrations.outgoing.faces import FACES, awaited
from tests.integrations.outgoing.origin import Origin, Said
from tests.waiters import PATIENCE, until

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


class CountingOrigin(Origin):
    """Refuses the requests that arrive beyond its limit."""

    def __init__(self, rule, now_ns):
        super().__init__(lambda: (now_ns.value - START_NS) / 1e9)
        self._limiter = Limiter(rule, clock=lambda: now_ns.value)

    def arrive(self, *request):
        super().arrive(*request)
        return Said(200 if self._limiter.hit("everyone") else 429)


def shared_limiter(redis, prefix, headroom, now_ns):
    rules = with_headroom(SlidingWindowLog(PROCESSES, 10), headroom)
    return Limiter(rules, redis, clock=lambda: now_ns.value, prefix=prefix, on_error="raise", deadline=5)


def send_late(url, redis, prefix, headroom, now_ns, admitted, may_leave, statuses):
    """Send two requests, each of which leaves only when it may."""

    class SlowNetwork(httpx.HTTPTransport):
        def handle_request(self, request):
            with admitted.get_lock():
                admitted.value += 1
                part = (admitted.value - 1) // PROCESSES
            assert may_leave[part].wait(PATIENCE)
            return super().handle_request(request)

    with shared_limiter(redis, prefix, headroom, now_ns) as limiter:
        client = httpx.Client(transport=LimitedTransport(limiter, key=lambda _: "k", transport=SlowNetwork()))
        for _ in range(2):
            statuses.put(client.get(url).status_code)
        client.close()


@pytest.mark.parametrize(("headroom", "next_at", "refused"), [(0, 10, PROCESSES), (0.05, 10.5, 0)])
def test_headroom_makes_up_for_requests_that_take_longer_to_arrive_than_others(headroom, next_at, refused):
    processes = multiprocessing.get_context("spawn")
    now_ns, admitted = processes.Value("q", START_NS), processes.Value("i", 0)
    may_leave, statuses = [processes.Event(), processes.Event()], processes.Queue()
    origin = CountingOrigin(SlidingWindowLog(PROCESSES, 10), now_ns)
    redis, prefix = servers.shared(servers.newest()).url, f"processes {next(_numbers)}"
    arguments = origin.url, redis, prefix, headroom, now_ns, admitted, may_leave, statuses
    senders = [processes.Process(target=send_late, args=arguments) for _ in range(PROCESSES)]
    try:
        for sender in senders:
            sender.start()
        until(lambda: admitted.value == PROCESSES, "the first of each")
        now_ns.value += 500_000_000  # for which they are on their way; the others take no time
        may_leave[0].set()
        until(lambda: len(origin.arrivals) == PROCESSES, "the first of each to arrive")
        may_leave[1].set()
        now_ns.value = START_NS + round(next_at * 1e9) - 1000
        with shared_limiter(redis, prefix, headroom, now_ns) as limiter:
            assert not limiter.hit("k")
        now_ns.value += 1000
        answers = [statuses.get(timeout=PATIENCE) for _ in range(2 * PROCESSES)]
    finally:
        for sender in senders:
            sender.kill()
        origin.stop()
    assert answers.count(429) == refused
    assert origin.times == [0.5] * PROCESSES + [next_at] * PROCESSES
