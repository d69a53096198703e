"""The answers of a rule, computed from its definition alone: an independent model in rational arithmetic.

Nothing here is fast. A state is the plain list or pair of the definition; `remaining`, `retry_after` and `reset_after`
are not computed but searched for, by trying the definition itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple


class Answer(NamedTuple):
    """One answer in whole microseconds; `retry_after_us` is None for never."""

    allowed: bool
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int


class Model:
    """One key of one rule. A subclass computes what is in use at a time; all the rest follows from that, here."""

    shaping = False

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.guess: Answer | None = None  # an answer to try first, before searching for the right one
        self.forget()

    # What a subclass computes.

    def forget(self) -> None:
        raise NotImplementedError

    def used(self, clock: int) -> Fraction | int:
        """Return how much of the limit a decision at this reading of the clock finds in use."""
        raise NotImplementedError

    def untouched(self, clock: int) -> bool:
        """Return whether the key would answer like one that was never hit."""
        raise NotImplementedError

    def consume(self, clock: int, cost: int) -> None:
        raise NotImplementedError

    def refund(self, clock: int, cost: int) -> None:
        raise NotImplementedError

    def give_back(self, clock: int, cost: int, charged: int, ends: int) -> None:
        """Return what still counts of a hit of this cost at that time, after which the key would end at `ends`."""
        raise NotImplementedError

    def expire(self, clock: int) -> None:
        """Forget what has expired by this time, as a store may or may not do at any moment."""
        raise NotImplementedError

    # What follows from that.

    def admits(self, clock: int, cost: int) -> bool:
        return self.used(clock) + cost <= self.limit

    def remaining(self, clock: int) -> int:
        """As many hits of cost 1 are admitted as one hit of their sum: nothing changes within an instant."""
        return first(lambda hits: not self.admits(clock, hits + 1), self.guess and self.guess.remaining)

    def retry_after(self, clock: int, cost: int) -> int | None:
        if cost > self.limit:
            return None
        return first(lambda wait: self.admits(clock + wait, cost), self.guess and self.guess.retry_after_us)

    def reset_after(self, clock: int) -> int:
        return first(lambda wait: self.untouched(clock + wait), self.guess and self.guess.reset_after_us)

    def delay(self, clock: int) -> int:
        return 0

    def peek(self, clock: int, cost: int) -> Answer:
        allowed = self.admits(clock, cost)
        return Answer(
            allowed,
            self.remaining(clock),
            self.retry_after(clock, cost),
            self.reset_after(clock),
            self.delay(clock) if allowed else 0,
        )

    def hit(self, clock: int, cost: int) -> Answer:
        before = self.peek(clock, cost)
        if not before.allowed:
            return before
        self.consume(clock, cost)
        return before._replace(remaining=self.remaining(clock), reset_after_us=self.reset_after(clock))

    def charge(self, clock: int, cost: int) -> None:
        self.consume(clock, cost)

    def reset(self, clock: int, cost: int = 1) -> None:
        self.forget()


class FixedWindow(Model):
    """Counts in windows that are aligned to the epoch."""

    def __init__(self, limit: int, window: int) -> None:
        self.window = window
        super().__init__(limit)

    def forget(self) -> None:
        self.number, self.count = 0, 0

    def standing(self, clock: int) -> tuple[int, int]:
        """Return the window that a decision at this reading belongs to, and the count in it."""
        number = clock // self.window
        if self.count and number in (self.number, self.number - 1):  # in it, or stepped back by one
            return self.number, self.count
        return number, 0

    def used(self, clock: int) -> int:
        return self.standing(clock)[1]

    def untouched(self, clock: int) -> bool:
        return self.used(clock) == 0

    def consume(self, clock: int, cost: int) -> None:
        number, count = self.standing(clock)
        self.number, self.count = number, count + cost

    def refund(self, clock: int, cost: int) -> None:
        number, count = self.standing(clock)
        self.number, self.count = number, max(0, count - cost)

    def give_back(self, clock: int, cost: int, charged: int, ends: int) -> None:
        if charged // self.window == self.standing(clock)[0]:
            self.refund(clock, cost)

    def expire(self, clock: int) -> None:
        if self.untouched(clock) and clock // self.window > self.number:
            self.forget()


class SlidingWindowLog(Model):
    """Remembers when each unit was admitted, as a list of (time, units)."""

    def __init__(self, limit: int, window: int) -> None:
        self.window = window
        super().__init__(limit)

    def forget(self) -> None:
        self.log: list[tuple[int, int]] = []

    def decided_at(self, clock: int) -> int:
        """Return the time that a decision at this reading is taken at: not before the newest unit."""
        newest = self.log[-1][0] if self.log else clock
        return newest if clock < newest <= clock + self.window else clock

    def counted(self, clock: int) -> list[tuple[int, int]]:
        now = self.decided_at(clock)
        return [(time, units) for time, units in self.log if time <= now < time + self.window]

    def used(self, clock: int) -> int:
        return sum(units for _, units in self.counted(clock))

    def untouched(self, clock: int) -> bool:
        return self.used(clock) == 0

    def consume(self, clock: int, cost: int) -> None:
        self.log = [*self.counted(clock), (self.decided_at(clock), cost)]

    def refund(self, clock: int, cost: int) -> None:
        kept = self.counted(clock)
        while kept and cost:
            time, units = kept.pop()
            if units > cost:
                kept.append((time, units - cost))
            cost -= min(units, cost)
        self.log = kept

    def give_back(self, clock: int, cost: int, charged: int, ends: int) -> None:
        kept = []
        for time, units in reversed(self.counted(clock)):
            returned = min(units, cost) if time == charged else 0
            cost -= returned
            if units > returned:
                kept.append((time, units - returned))
        if sum(units for _, units in kept) < self.used(clock):  # otherwise a store may keep what has expired
            self.log = kept[::-1]

    def expire(self, clock: int) -> None:
        self.log = [(time, units) for time, units in self.log if clock < time + self.window]


class SlidingWindowCounter(Model):
    """Weights the count of the previous window by the part of it that the sliding window still covers."""

    def __init__(self, limit: int, window: int) -> None:
        self.window = window
        super().__init__(limit)

    def forget(self) -> None:
        self.number, self.count, self.before = 0, 0, 0

    def standing(self, clock: int) -> tuple[int, int, int, int]:
        """Return the window that a decision belongs to, its count, the count before, and how far into it we are."""
        number, elapsed = divmod(clock, self.window)
        if number == self.number:
            return number, self.count, self.before, elapsed
        if number == self.number - 1 and (self.count or self.before):  # stepped back by one: its start
            return self.number, self.count, self.before, 0
        if number == self.number + 1:
            return number, 0, self.count, elapsed
        return number, 0, 0, elapsed

    def estimate(self, clock: int) -> Fraction:
        _, count, before, elapsed = self.standing(clock)
        return count + before * Fraction(self.window - elapsed, self.window)

    def used(self, clock: int) -> int:
        return math.floor(self.estimate(clock))

    def untouched(self, clock: int) -> bool:
        return self.estimate(clock) == 0

    def consume(self, clock: int, cost: int) -> None:
        number, count, before, _ = self.standing(clock)
        self.number, self.count, self.before = number, count + cost, before

    def refund(self, clock: int, cost: int) -> None:
        number, count, before, _ = self.standing(clock)
        self.number, self.count, self.before = number, max(0, count - cost), before

    def give_back(self, clock: int, cost: int, charged: int, ends: int) -> None:
        if charged // self.window == self.standing(clock)[0]:
            self.refund(clock, cost)

    def expire(self, clock: int) -> None:
        if self.untouched(clock) and clock // self.window > self.number:
            self.forget()


class Bucket(Model):
    """A level that drains at a rate. A token bucket is the same from the other side: the level is what is missing."""

    def __init__(self, limit: int, rate: Fraction, *, shaping: bool = False) -> None:
        self.rate = rate  # units per microsecond
        self.shaping = shaping
        super().__init__(limit)

    def forget(self) -> None:
        self.level, self.at = Fraction(0), 0

    def decided_at(self, clock: int) -> int:
        return clock if self.is_far_ahead(clock) else max(clock, self.at)

    def is_far_ahead(self, clock: int) -> bool:
        """Return whether the state is further ahead of the clock than a full bucket takes to drain."""
        return self.at - clock > self.limit / self.rate

    def used(self, clock: int) -> Fraction:
        if self.is_far_ahead(clock):
            return Fraction(0)
        return max(Fraction(0), self.level - self.rate * (self.decided_at(clock) - self.at))

    def untouched(self, clock: int) -> bool:
        return self.used(clock) == 0

    def delay(self, clock: int) -> int:
        level = self.used(clock)
        if not self.shaping or level == 0:
            return 0
        return math.ceil(self.decided_at(clock) + level / self.rate) - clock

    def write(self, clock: int, level: Fraction) -> None:
        self.level, self.at = level, self.decided_at(clock)
        if level == 0:
            self.forget()

    def consume(self, clock: int, cost: int) -> None:
        self.write(clock, self.used(clock) + cost)

    def refund(self, clock: int, cost: int) -> None:
        self.write(clock, max(Fraction(0), self.used(clock) - cost))

    def give_back(self, clock: int, cost: int, charged: int, ends: int) -> None:
        now = self.decided_at(clock)
        if now < charged or (self.shaping and ends != math.ceil(self.at + self.level / self.rate)):
            return  # the state is older than the charge, or it is not the last in line
        left = max(Fraction(0), cost - self.rate * (now - charged))
        self.write(clock, max(Fraction(0), self.used(clock) - left))

    def expire(self, clock: int) -> None:
        if clock >= self.at and self.untouched(clock):
            self.forget()


class Verdict(NamedTuple):
    """The answer to a request on several rules, and each rule's own."""

    rule: str
    limit: int
    answer: Answer
    layers: dict[str, Answer]


class Layers:
    """Several rules on one request, all or nothing."""

    def __init__(self, models: dict[str, Model]) -> None:
        self.models = models

    def peek(self, clock: int, costs: dict[str, int]) -> Verdict:
        return self.verdict({name: self.models[name].peek(clock, cost) for name, cost in costs.items()})

    def hit(self, clock: int, costs: dict[str, int]) -> Verdict:
        if not all(self.models[name].admits(clock, cost) for name, cost in costs.items()):
            return self.peek(clock, costs)
        return self.verdict({name: self.models[name].hit(clock, cost) for name, cost in costs.items()})

    def charge(self, clock: int, costs: dict[str, int]) -> None:
        for name, cost in costs.items():
            self.models[name].charge(clock, cost)

    def refund(self, clock: int, costs: dict[str, int]) -> None:
        for name, cost in costs.items():
            self.models[name].refund(clock, cost)

    def reset(self, clock: int, costs: dict[str, int]) -> None:
        for model in self.models.values():
            model.forget()

    def verdict(self, layers: dict[str, Answer]) -> Verdict:
        denied = [name for name, answer in layers.items() if not answer.allowed]
        if denied:
            longest = max(_endless(layers[name].retry_after_us) for name in denied)
            rule = next(name for name in denied if _endless(layers[name].retry_after_us) == longest)
        else:
            smallest = min(answer.remaining for answer in layers.values())
            rule = next(name for name, answer in layers.items() if answer.remaining == smallest)
        answer = Answer(
            not denied,
            min(answer.remaining for answer in layers.values()),
            layers[rule].retry_after_us,
            max(answer.reset_after_us for answer in layers.values()),
            max(answer.delay_us for answer in layers.values()),
        )
        return Verdict(rule, self.models[rule].limit, answer, layers)


def _endless(retry_after_us: int | None) -> float:
    return math.inf if retry_after_us is None else retry_after_us


def _bucket(rule: dict) -> Bucket:
    return Bucket(rule["capacity"], Fraction(*rule["rate"]) / 1_000_000, shaping=rule.get("mode") == "shaping")


MODELS: dict[str, Callable[[dict], Model]] = {
    "fixed-window": lambda rule: FixedWindow(rule["limit"], rule["window_us"]),
    "sliding-window-log": lambda rule: SlidingWindowLog(rule["limit"], rule["window_us"]),
    "sliding-window-counter": lambda rule: SlidingWindowCounter(rule["limit"], rule["window_us"]),
    "token-bucket": _bucket,
    "leaky-bucket": _bucket,
}


def model_of(rule: dict) -> Model:
    """Build the model of a rule as the vectors write it."""
    return MODELS[rule["algorithm"]](rule)


def first(holds: Callable[[int], bool], guess: int | None = None) -> int:
    """Return the smallest number from 0 on for which a condition holds that then holds for all larger ones."""
    if holds(0):
        return 0
    if guess and guess > 0 and holds(guess) and not holds(guess - 1):
        return guess
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
