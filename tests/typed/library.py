"""What users of limiters write, with their tests, checked with mypy --strict and pyright; nothing here is run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from fractions import Fraction

from ratekeeper import (
    AsyncLimiter,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limiter,
    RateLimited,
    SlidingWindowLog,
    TokenBucket,
    parse,
    rule,
)
from ratekeeper.http import Notices, ServerLimits, parse_headers, with_headroom
from ratekeeper.stores import MemoryStore, RedisStore, SqliteStore
from ratekeeper.testing import ManualClock, fresh_limits, reset_limiters

clock = ManualClock()
limiter = Limiter("100/minute", store="redis://localhost:6379/0", prefix="billing", on_error="open", deadline=0.5)
layered = Limiter(
    {
        "user": "10/s burst 20",
        "tenant": FixedWindow(limit=1000, window=timedelta(minutes=1)),
        "all": TokenBucket(5, "1/s"),
    },
    MemoryStore(max_keys=1000),
    clock=clock,
    enabled=False,
    shadow=["tenant"],
    on_decision=lambda key, decision: print(key, decision.remaining),
)
several = Limiter([SlidingWindowLog(10, "1m"), LeakyBucket(5, Fraction(1, 3), mode="shaping")], SqliteStore("a.db"))
unified = Limiter(rule("token_bucket", limit=100, window="1h"))
unified = Limiter(rule("leaky-bucket", capacity=10, leak_rate=0.5, mode="shaping"), RedisStore("redis://localhost"))
first = parse("10/minute; 100/hour")[0]
stricter = Limiter(with_headroom("10/s", 0.05))


def use() -> float:
    decision: Decision = limiter.hit("user:42", cost=3)
    if not decision:
        return decision.retry_after
    layered.hit({"user": "42", "tenant": ("acme", 1), "all": b"all"}, cost={"user": 2})
    names: dict[str, int] = {name: layer.remaining for name, layer in decision.layers.items()}
    counts: int = limiter.notices.counts["degraded"] + sum(names.values())
    counts += limiter.peek(1).limit + limiter.charge("a", 2).limit + limiter.refund("a").limit
    limiter.reset("a")
    limiter.reset_all()
    taken = limiter.take("user:42", cost=1500)
    if taken:
        taken.correct(real_cost=1210)
        taken.correct({"user": 1})
        taken.give_back()
    with limiter.slot("a", timeout=5) as waited:
        return waited.delay + limiter.wait_and_take("a", timeout=0).decision.reset_after + counts


@limiter.limited(key="mail", timeout=5)
def send(to: str, *, subject: str = "") -> int:
    return len(to)


@limiter.limited(key=lambda to, subject: to, cost=lambda to, subject: len(subject))
def deliver(to: str, subject: str) -> str:
    return to + subject


sent: int = send("ada", subject="hello")
send(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
limiter.hit("a", cost="1")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
Limiter("1/s", on_error="never")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

# --- asyncio

budget = AsyncLimiter({"requests": "500/minute", "tokens": "30000/minute"}, "redis://localhost")


@budget.limited(key="mail")
async def send_later(to: str) -> int:
    async with budget.slot("a") as decision, AsyncLimiter("1/s") as own:
        reservation = await own.take(to, cost=2)
        await reservation.give_back()
        return decision.remaining


async def use_later() -> int:
    started: Decision | Awaitable[Decision] = budget.start_hit("a")
    first = started if isinstance(started, Decision) else await started
    try:
        decision = await budget.wait("a", cost={"tokens": 100}, timeout=0.5)
    except RateLimited as error:
        return error.decision.limit
    await budget.reset_all()
    return decision.remaining + first.remaining + await send_later("ada")


# --- tests, and clients

fixture: Callable[[], None] = fresh_limits
notices = Notices()


def test_with_a_clock() -> None:
    reset_limiters()
    own = Limiter("1/day", clock=clock)
    assert own.hit("ada").allowed
    clock.advance(timedelta(days=1).total_seconds())
    found: ServerLimits = parse_headers({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"})
    assert found.wait == 1.0 or found.retry_after is None
