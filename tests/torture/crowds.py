"""Callers that keep asking, from threads or from tasks, and the answers that they got, for the drills on faults."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ratekeeper import AsyncLimiter, FixedWindow, Limiter, StoreUnavailable

RULE = FixedWindow(10**9, "365d")
ONCE = "(logged once; see .notices)"
DEADLINE = 0.1
SLOWEST, BACK = DEADLINE + 0.02, 1.5  # seconds, as promised: for an answer, and for the return to Redis
PATIENCE = 60  # seconds until a drill gives up: far beyond ten times the promise
tolerance = 10.0  # times the promise, to tell an answer from a hang; `make torture` is stricter
quiet = False  # set by `make torture`: nothing else runs here, so what a busy scheduler may spoil is asserted too


def is_quiet() -> bool:
    """Return whether nothing else runs on this machine."""
    return quiet


def check_times(slowest: float, back: float = 0.0) -> None:
    """Raise if an answer, or the return to Redis, took much longer than promised."""
    assert slowest < tolerance * SLOWEST, f"a call took {slowest * 1000:.0f} ms, {SLOWEST * 1000:.0f} are promised"
    assert back < tolerance * BACK, f"Redis decided again after {back:.2f} s, {BACK} are promised"


class Told(NamedTuple):
    """One answer."""

    caller: int
    begun: float
    ended: float
    degraded: bool


class Crowd:
    """Callers that ask again and again until the `with` block ends, about 500 times a second together."""

    name: str

    def __init__(self, url: str, callers: int) -> None:
        self.callers = callers
        self.told: list[Told] = []
        self.errors: list[Exception] = []
        self.breaker: Any = None
        self._url = url
        self._pause = max(0.01, callers / 500)
        self._over = threading.Event()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
        stuck = sum(thread.is_alive() for thread in self._threads)
        assert not stuck, f"{stuck} threads were never answered"

    def check(self) -> None:
        """Raise if a caller got no decision, or got it late."""
        assert not self.errors, f"{len(self.errors)} calls raised, such as {self.errors[0]!r}"
        check_times(self.slowest())

    def slowest(self) -> float:
        return max(told.ended - told.begun for told in list(self.told))

    def until_asked(self) -> None:
        """Let the callers begin, and wait for the first answers."""
        until(lambda: len(self.told) >= self.callers, "the callers begin")

    def until_back(self, since: float) -> float:
        """Wait until Redis has decided a call of each caller, and return how long that took for the first of them."""
        until(lambda: len(self.decided(since)) == self.callers, "Redis decides calls of every caller")
        first = min(self.decided(since).values())
        if quiet:
            time.sleep(0.2)
            degraded = [told for told in list(self.told) if told.begun > first and told.degraded]
            assert not degraded, f"{len(degraded)} calls were degraded although Redis was back"
        check_times(0.0, first - since)
        return max(0.0, first - since)

    def asked(self, since: float) -> set[int]:
        """Return the callers that got an answer to a call that began later than this."""
        return {told.caller for told in list(self.told) if told.begun > since}

    def decided(self, since: float) -> dict[int, float]:
        """Return, by caller, when Redis first answered a call that began later than this."""
        ended: dict[int, float] = {}
        for told in list(self.told):
            if told.begun > since and not told.degraded:
                ended.setdefault(told.caller, told.ended)
        return ended


class Threads(Crowd):
    """Threads that share one limiter."""

    name = "threads"

    def __enter__(self) -> Threads:
        self._limiter = Limiter(RULE, self._url, deadline=DEADLINE)
        self.breaker = self._limiter.store.breaker
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(self.callers)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._limiter.close()

    def _ask(self, number: int) -> None:
        while not self._over.wait(self._pause):
            begun = time.monotonic()
            try:
                decision = self._limiter.hit(f"thread {number}")
                self.told.append(Told(number, begun, time.monotonic(), decision.degraded))
            except Exception as error:  # noqa: BLE001 - whatever reaches a caller is what is looked for
                self.errors.append(error)


class Tasks(Crowd):
    """Tasks that share one limiter, in an event loop that runs in a thread of its own."""

    name = "tasks"

    def __enter__(self) -> Tasks:
        begun = threading.Event()
        self._threads = [threading.Thread(target=lambda: asyncio.run(self._run(begun)), daemon=True)]
        self._threads[0].start()
        begun.wait()
        return self

    async def _run(self, begun: threading.Event) -> None:
        async with AsyncLimiter(RULE, self._url, deadline=DEADLINE) as limiter:
            self.breaker = limiter.store.breaker
            begun.set()
            await asyncio.gather(*(self._ask(limiter, number) for number in range(self.callers)))

    async def _ask(self, limiter: AsyncLimiter, number: int) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            try:
                decision = await limiter.hit(f"task {number}")
                self.told.append(Told(number, begun, time.monotonic(), decision.degraded))
            except Exception as error:  # noqa: BLE001 - whatever reaches a caller is what is looked for
                self.errors.append(error)
            await asyncio.sleep(self._pause)


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the lines of the log instead of showing them, except the notices: there is one for each reason."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.module != "notices":
                lines.append(record.getMessage())

    handler = Collect()
    log = logging.getLogger("ratekeeper")
    propagated, log.propagate = log.propagate, False
    handlers, log.handlers = log.handlers, [handler]
    try:
        yield lines
    finally:
        log.handlers = handlers
        log.propagate = propagated


@contextmanager
def both(url: str, threads: int, tasks: int) -> Iterator[list[Crowd]]:
    """Let threads and tasks ask at once; Redis decides before anything happens."""
    crowds = [Threads(url, threads), Tasks(url, tasks)]
    with crowds[0], crowds[1]:
        for crowd in crowds:
            crowd.until_asked()
        until_back(crowds)
        yield crowds


def until_away(crowds: list[Crowd]) -> None:
    """Wait until all crowds have noticed and logged that Redis is away: tasks ask all at once, once a second."""
    until(lambda: all(crowd.breaker.is_open for crowd in crowds), "Redis is taken to be away")


def until_stood_in(crowds: list[Crowd]) -> None:
    """Wait until every caller has an answer; raise if Redis, which is away, decided any of them."""
    time.sleep(4 * DEADLINE)  # earlier calls have been answered by now
    since = time.monotonic()
    for crowd in crowds:
        until(lambda crowd=crowd: len(crowd.asked(since)) == crowd.callers, "every caller is told something")
        decided = crowd.decided(since)
        assert not decided, f"{len(decided)} callers had calls decided by a Redis that is away"


def until_back(crowds: list[Crowd]) -> float:
    """Wait until Redis decides all calls again, and return how long that took for the last of them."""
    now = time.monotonic()
    return max(crowd.until_back(now) for crowd in crowds)


def figure(crowds: list[Crowd], back: float) -> str:
    """Describe how many calls got which answer, and how fast."""
    answers = sum(len(crowd.told) for crowd in crowds)
    slowest = ", ".join(f"{crowd.callers} {crowd.name} {crowd.slowest() * 1000:.0f} ms" for crowd in crowds)
    return f"{answers:,} answers, slowest of {slowest}; back on Redis within {back:.2f} s"


def check(crowds: list[Crowd], lines: list[str]) -> None:
    """Raise unless every caller got a decision in time, and each change of state was logged once; Redis is back."""
    for crowd in crowds:
        crowd.check()
    openings = sum(crowd.breaker.openings for crowd in crowds)
    still_away = sum(crowd.breaker.is_open for crowd in crowds)
    assert not (quiet and still_away), "Redis is taken to be away although it is back"
    changes = without_notices(lines, crowds)
    away, back = (sum(word in line for line in changes) for word in (" is away", " is back"))
    assert (away, back, len(changes)) == (openings, openings - still_away, away + back), (
        f"{openings} times away, logged {away} times, and {back} times back, in {len(changes)} lines"
    )


def without_notices(lines: list[str], crowds: list[Crowd]) -> list[str]:
    """Return the lines about changes of state; raise if a limiter logged any other reason more than once."""
    notices = [line for line in lines if line.endswith(ONCE)]
    reasons = Counter(line.partition(";")[0] for line in notices)
    assert max(reasons.values(), default=0) <= len(crowds), f"logged more than once: {notices}"
    return [line for line in lines if not line.endswith(ONCE)]


def check_on_error(url: str) -> None:
    """Raise unless new limiters answer by `on_error` while Redis is away, both sync and async."""
    with logged():
        _check_on_error(url)


def _check_on_error(url: str) -> None:
    async def ask(on_error: Any) -> Any:
        async with AsyncLimiter(RULE, url, on_error=on_error) as limiter:
            return await limiter.hit("asked")

    def ask_at_once(on_error: Any) -> Any:
        with Limiter(RULE, url, on_error=on_error) as limiter:
            return limiter.hit("asked")

    for asked in (ask_at_once, lambda on_error: asyncio.run(ask(on_error))):
        for on_error, expected in {"local": (True, True), "open": (True, True), "closed": (False, True)}.items():
            seen = _answer(asked, on_error)
            assert seen == expected, f"on_error={on_error!r}: allowed and degraded should be {expected}: {seen}"
        seen = _answer(asked, "raise")
        assert isinstance(seen, StoreUnavailable), f"on_error='raise': {seen!r}"


def _answer(asked: Any, on_error: str) -> Any:
    try:
        decision = asked(on_error)
    except Exception as error:  # noqa: BLE001 - whatever reaches a caller is what is looked for
        return error
    return decision.allowed, decision.degraded


def until(condition: Any, what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"never: {what}"
        time.sleep(0.01)
