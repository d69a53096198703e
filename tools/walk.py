"""Print the walk of one decision: which of the package's own functions it calls, and in which modules.

    python tools/walk.py                  # a table of all walks
    python tools/walk.py redis --list     # one walk, indented by depth

Each decision is warm: the same one was made before, so scripts are loaded and connections are open. A function counts
each time it is called, and a coroutine or generator also each time it resumes. An entry is a step from one module into
another. Up to Python 3.11, a comprehension is a call as well; the targets are for Python 3.11.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests know how to start a redis-server

from ratekeeper import AsyncLimiter, Limiter
from ratekeeper.integrations.asgi import RateLimitMiddleware
from ratekeeper.service.app import create_app
from ratekeeper.testing import ManualClock
from tests import servers

PACKAGE = "ratekeeper."
HELPERS = "ratekeeper.testing"  # a walk's clock does not count
RULE = "1000/minute"
TWO_RULES = {"minute": "1000/minute", "hour": "10000/hour"}
BODY = b'{"key": "user:42", "algorithm": "fixed-window", "limit": 1000, "window": 60}'
HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


class Call(NamedTuple):
    """One entry into a function of the package."""

    depth: int  # how many of the package's functions are on the stack
    module: str
    name: str
    resumes: bool  # whether it is a coroutine or generator that continues


class Figures(NamedTuple):
    """The measures of a walk; None where there is no target."""

    calls: int
    modules: int
    entries: int | None  # always a number in a measured walk

    def __str__(self) -> str:
        return " / ".join("-" if number is None else str(number) for number in self)

    def is_within(self, wanted: Figures) -> bool:
        return all(number is None or own <= number for own, number in zip(self, wanted, strict=True))


class Walk:
    """Records the calls that this thread makes while it is on, in a `with` block."""

    def __init__(self, asleep: Callable[[], None] | None = None) -> None:
        self.calls: list[Call] = []
        self._asleep = asleep
        self._entered: dict[int, FrameType] = {}  # holding a frame keeps its id from being reused

    def __enter__(self) -> Walk:
        gc.disable()  # finalizers do not belong to the walk
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()
        self._entered.clear()

    @property
    def figures(self) -> Figures:
        modules = [call.module for call in self.calls]
        entries = sum(module != before for module, before in zip(modules, [None, *modules], strict=False))
        return Figures(len(modules), len(set(modules)), entries)

    def lines(self) -> Iterator[str]:
        for call in self.calls:
            mark = " (resumes)" if call.resumes else ""
            yield f"{call.module.removeprefix(PACKAGE):28} {'  ' * call.depth}{call.name}{mark}"

    def _note(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "call" and _is_own(frame):
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 only has the short name
            depth = sum(map(_is_own, _callers(frame)))
            self.calls.append(Call(depth, frame.f_globals["__name__"], name, id(frame) in self._entered))
            self._entered[id(frame)] = frame
        elif self._asleep and event == "c_call" and function.__name__ == "acquire" and function.__self__.locked():
            self._asleep()


def _is_own(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return module.startswith(PACKAGE) and not module.startswith(HELPERS)


def _callers(frame: FrameType) -> Iterator[FrameType]:
    caller = frame.f_back
    while caller is not None:
        yield caller
        caller = caller.f_back


def of_threads(decide: Callable[[], object]) -> Walk:
    """Return the walk of a warm call."""
    for _ in range(3):
        decide()
    with Walk() as walk:
        decide()
    return walk


def of_tasks(decide: Callable[[], Coroutine[Any, Any, object]]) -> Walk:
    """Return the walk of a warm coroutine, including what the event loop runs for it."""

    async def take() -> Walk:
        for _ in range(3):
            await decide()
        with Walk() as walk:
            await decide()
        return walk

    return asyncio.run(take())


def memory() -> Walk:
    limiter = Limiter(RULE)
    return of_threads(lambda: limiter.hit("user:42"))


def redis(rules: Any = RULE) -> Walk:
    with Limiter(rules, servers.shared(servers.newest()).url, on_error="raise", deadline=10) as limiter:
        return of_threads(lambda: limiter.hit("user:42"))


def redis_two() -> Walk:
    return redis(TWO_RULES)


def redis_loop() -> Walk:
    url = servers.shared(servers.newest()).url

    async def take() -> Walk:
        async with AsyncLimiter(RULE, url, on_error="raise", deadline=10) as limiter:
            for _ in range(3):
                await limiter.hit("user:42")
            with Walk() as walk:
                await limiter.hit("user:42")
            return walk

    return asyncio.run(take())


def wait() -> Walk:
    """A call that is admitted with a delay and sleeps through it; the clock moves once it is asleep."""
    clock = ManualClock()
    limiter = Limiter("leaky-bucket 10/s burst 20 shaping", clock=clock)
    for key in ("user:41", "user:42"):
        limiter.hit(key)
    asleep = threading.Event()
    with contextlib.ExitStack() as stack:
        mover = threading.Thread(target=lambda: asleep.wait() and clock.advance(10))
        mover.start()
        stack.callback(mover.join)
        stack.callback(asleep.set)
        walk = stack.enter_context(Walk(asleep.set))
        limiter.wait("user:42")
    return walk


def asgi() -> Walk:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limited = RateLimitMiddleware(app, RULE)
    return of_tasks(lambda: limited(_scope("GET", "/"), _receive, _send))


def service() -> Walk:
    app = create_app(playground=False)
    return of_tasks(lambda: app(_scope("POST", "/v1/hit"), _receive, _send))


def _scope(method: str, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": HEADERS,
        "client": ("192.0.2.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
    }


async def _receive() -> dict[str, Any]:
    return {"type": "http.request", "body": BODY}


async def _send(message: dict[str, Any]) -> None:
    assert message.get("status", 200) == 200, message


WALKS: dict[str, tuple[str, Callable[[], Walk], Figures]] = {
    "memory": ("Limiter.hit in memory", memory, Figures(4, 4, 4)),
    "redis": ("Redis, one thread, one rule", redis, Figures(30, 9, 14)),
    "redis-two": ("Redis, one thread, two rules", redis_two, Figures(48, 10, 16)),
    "redis-loop": ("Redis, event loop, one rule", redis_loop, Figures(32, 9, None)),
    "wait": ("wait, shaping, in memory", wait, Figures(55, 8, 20)),
    # These two are as they should be; their targets leave room for a hit in memory to reach its own. The middleware
    # learns which decision is the tightest when the response starts, which takes one entry more. Of the service's walk,
    # one call tells what counts the decision.
    "asgi": ("ASGI middleware", asgi, Figures(17, 10, 14)),
    "service": ("POST /v1/hit", service, Figures(24, 13, 21)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", choices=[[], *WALKS], help=f"one of {', '.join(WALKS)} (default: all)")
    parser.add_argument("--list", action="store_true", help="print each walk, indented by depth")
    arguments = parser.parse_args()
    print(f"{'calls / modules / entries':32}{'now':>16}{'target, at most':>20}")
    for name in arguments.name or WALKS:
        title, take, wanted = WALKS[name]
        walk = take()
        mark = "" if walk.figures.is_within(wanted) else "  more"
        print(f"{title:32}{walk.figures!s:>16}{wanted!s:>20}{mark}")
        if arguments.list:
            print(*walk.lines(), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
