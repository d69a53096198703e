"""Drills on the service as processes: its workers, its store and itself are killed while clients ask."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ratekeeper import Limiter
from tests.servers import RedisServer, newest, programs
from tests.service.keep_alive import KeepAlive
from tests.service.serving import Served
from tests.torture import progress
from tests.torture.crowds import is_quiet, until

LIMIT = 2_000
RULE = f"fixed-window {LIMIT}/365d"
BODY = b'{"key": "one", "rule": "%s"}' % RULE.encode()
PROMISE = 0.12  # seconds: the deadline of a decision, and a little for the service around it


def _restart(served: Served, number: signal.Signals) -> Served:
    """End the service, and start another one on its port as soon as that is free."""
    workers = served.workers
    served.hang_up()
    served.process.send_signal(number)
    served.process.wait(60)
    served.stop()  # which closes what is left of it
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers), "its workers end")  # noqa: PTH110
    return Served(served.store, *served.options, port=served.port)


def _killed_worker(served: Served) -> None:
    known = served.workers
    os.kill(min(known), signal.SIGKILL)
    until(lambda: len(served.workers - known) == 1, "another worker is started")


def killed_in_turn(rounds: int = 5, clients: int = 16) -> str:
    """Workers, the service and Redis are killed in turn under load: no wrong 200, and no answer that hangs."""
    redis = RedisServer(programs()[newest()])
    served = Served(redis.url, "--workers", "2")
    cut = answered = 0
    slowest = 0.0

    def asked(what: str, fault: Callable[[], None]) -> KeepAlive:
        """Let clients ask before, during and after a fault."""
        nonlocal cut, answered, slowest
        progress("killed_service", what)
        with KeepAlive(served.port, BODY, clients) as load:
            until(lambda: load.answered > 10 * clients, "the clients are answered")
            fault()
            before = load.answered
            until(lambda: load.answered > before + 10 * clients, f"they are answered after {what}")
        cut, answered = cut + len(load.cut), answered + load.answered
        slowest = max(slowest, load.slowest)
        return load

    def is_used_up() -> bool:
        with Limiter(RULE, redis.url, on_error="raise", deadline=30) as limiter:
            return limiter.peek("one").remaining == 0

    def use_up() -> None:
        """Use up the limit, which Redis admits again after it was killed."""
        with KeepAlive(served.port, BODY, clients) as load:
            until(is_used_up, "the limit is used up")
        admitted = load.answers[200] - load.degraded[200]
        assert admitted <= LIMIT, f"{admitted:,} admitted of {LIMIT:,}"

    def again(number: signal.Signals) -> Callable[[], None]:
        def fault() -> None:
            nonlocal served
            served = _restart(served, number)

        return fault

    def away() -> None:
        redis.stop()
        time.sleep(0.3)
        redis.start()

    try:
        for turn in range(rounds):
            use_up()
            for what, fault in (
                ("a killed worker", lambda: _killed_worker(served)),
                ("a killed service", again(signal.SIGKILL)),
                ("a restart", again(signal.SIGTERM)),
            ):
                load = asked(f"{what}, round {turn + 1}", fault)
                wrong = load.answers[200] - load.degraded[200]
                assert wrong == 0, f"{what}: {wrong} requests were admitted beyond the limit"
                assert set(load.answers) <= {200, 429}, f"{what}: {dict(load.answers)}"
                if what == "a restart" and is_quiet():  # on a busy machine, a client may take too long to send
                    assert not load.cut, f"a restart cut off {load.cut}"
            load = asked(f"a killed Redis, round {turn + 1}", away)
            assert set(load.answers) <= {200, 429}, f"a killed Redis: {dict(load.answers)}"
            assert load.answers[200] <= 3 * LIMIT, "each worker admits its share at most, and Redis the limit again"
    finally:
        served.stop()
        redis.stop()
    tolerated = 4.0 if is_quiet() else 100.0
    assert slowest < tolerated * PROMISE, f"an answer took {slowest * 1000:.0f} ms"
    return f"{rounds} rounds, {answered:,} answers, {cut} cut off by kill -9, slowest answer {slowest * 1000:.0f} ms"


DRILLS = {"killed_service": killed_in_turn}
