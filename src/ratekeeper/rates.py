"""Windows as whole microseconds, rates as exact fractions, and the notation for both.

>>> window_us("1h30m")
5400000000
>>> rate("10/minute")
Fraction(1, 6)
>>> rate(0.1)
Fraction(1, 10)
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, TypeAlias

from ratekeeper.errors import InvalidRule

if TYPE_CHECKING:  # imported when needed, which keeps the import of the package fast
    from datetime import timedelta
    from fractions import Fraction

Window: TypeAlias = "int | float | Fraction | str | timedelta"
Rate: TypeAlias = "int | float | Fraction | str"

SECOND_US = 1_000_000
_UNIT_US = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": 86_400 * SECOND_US,
    "w": 7 * 86_400 * SECOND_US,
    "month": 30 * 86_400 * SECOND_US,
    "year": 365 * 86_400 * SECOND_US,
}
_SPELLINGS = {
    "us": ("us", "µs", "usec", "microsecond"),
    "ms": ("ms", "msec", "millisecond"),
    "s": ("s", "sec", "second"),
    "m": ("m", "min", "minute"),
    "h": ("h", "hr", "hour"),
    "d": ("d", "day"),
    "w": ("w", "wk", "week"),
    "month": ("mo", "month"),
    "year": ("y", "yr", "year"),
}
UNITS = {
    spelling + plural: _UNIT_US[unit]
    for unit, words in _SPELLINGS.items()
    for spelling in words
    for plural in (("", "s") if len(spelling) > 1 else ("",))
}
ACCEPTED_UNITS = "us, ms, s, minute, hour, day, week, month (30 days) or year (365 days)"
_ONE_DURATION = r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)?\s*([^\W\d_]+)\s*"
_COUNT_AND_PERIOD = r"\s*([0-9][0-9_]*)\s*(?:/|per\b)\s*(.*?)\s*"
_MAX_DIGITS = 30
MAX_CHARACTERS = 200  # of one rule, window or rate: the patterns take quadratic time on long runs of spaces

# Lua's numbers are doubles, so the exact arithmetic on Redis works in parts; these bounds keep every part below 2^53.
# All stores have the same bounds: a rule means the same everywhere or is invalid everywhere.
MAX_LIMIT = 10**12
MAX_WINDOW_US = 2**45
MAX_RATE_PART = 2**46
MAX_DRAIN_US = 2**51
MAX_USAGE = 2**42  # the most that `charge` can accumulate; usage does not grow beyond it


def show(value: object) -> str:
    """Quote a value for an error message, truncated to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than str can write
        text = f"<{type(value).__name__} that is too large to show>"
    return text if len(text) <= 80 else text[:77] + "..."


def limit(value: object, argument: str = "limit") -> int:
    """Check a limit or a capacity: a whole number from 1 to 10^12."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int of at least 1, not {show(value)}")
    if not 1 <= value <= MAX_LIMIT:
        raise InvalidRule(
            f"{argument} must be from 1 to {MAX_LIMIT} (the range that every store counts exactly), not {show(value)}"
        )
    return int(value)


def window_us(value: object, argument: str = "window") -> int:
    """Read a window: seconds, a timedelta or a text such as "1m", "1h30m" or "250ms"."""
    from fractions import Fraction

    datetime = sys.modules.get("datetime")  # if it is not imported, there are no timedeltas
    if datetime is not None and isinstance(value, datetime.timedelta):
        microseconds = Fraction(value // datetime.timedelta(microseconds=1))
    elif isinstance(value, str):
        microseconds = _duration_us(value, argument)
    else:
        microseconds = _number(value, argument, "seconds, a timedelta or a text such as '1m' or '250ms'") * SECOND_US
    if isinstance(value, float) and round(microseconds) / SECOND_US == value:
        microseconds = Fraction(round(microseconds))  # the float means a whole number of microseconds
    if microseconds <= 0:
        raise InvalidRule(f"{argument} must be longer than 0, not {show(value)}")
    if microseconds.denominator != 1:
        raise InvalidRule(f"{argument} must be a whole number of microseconds, not {show(value)}")
    if microseconds > MAX_WINDOW_US:
        raise InvalidRule(
            f"{argument} must be at most {MAX_WINDOW_US} microseconds (407 days, to stay exact), not {show(value)}"
        )
    return int(microseconds)


def shared(start: int, latest: list[int]) -> int:
    """Return the start of a window as one object that all keys share; `latest` keeps it.

    A separate object for each key would take 32 bytes, and reading it would cost a cache miss per decision.
    """
    known = latest[0]
    if known == start:
        return known
    latest[0] = start
    return start


def rate(value: object, argument: str = "rate") -> Fraction:
    """Read a rate: units per second, or a text such as "10/minute"."""
    if isinstance(value, str):
        count, period_us = count_and_period(value, f"{argument} {show(value)}")
        from fractions import Fraction

        per_second = Fraction(count * SECOND_US, period_us)
    else:
        per_second = _number(value, argument, "units per second or a text such as '10/minute'")
    if per_second <= 0:
        raise InvalidRule(f"{argument} must be above 0, not {show(value)}")
    return per_second


def per_microsecond(per_second: Fraction, capacity: int, argument: str) -> tuple[int, int]:
    """Return a rate as reduced (units, period_us): `units` every `period_us`. Raise InvalidRule if it is not exact."""
    reduced = per_second / SECOND_US
    units, period = reduced.numerator, reduced.denominator
    if max(units, period) > MAX_RATE_PART:
        raise InvalidRule(
            f"{argument} {show(per_second)} cannot be exact: {show(units)} units every {show(period)} us exceeds 2^46; "
            "use a simpler fraction, or a text such as '10/minute'"
        )
    if capacity * period > MAX_DRAIN_US * units:
        raise InvalidRule(f"{argument} {show(per_second)} takes more than 71 years to fill or drain {capacity}")
    return units, period


def count_and_period(text: str, context: str) -> tuple[int, int]:
    """Read "10/s", "5/15minutes" or "10 per 2 hours" as a count and its period in microseconds."""
    check_length(text, context)
    match = re.fullmatch(_COUNT_AND_PERIOD, text, re.IGNORECASE | re.DOTALL)
    if match is None:
        raise InvalidRule(f"{context}: expected a count and a period, as in '10/s', '5/15minutes' or '10 per 2 hours'")
    period = _duration_us(match[2], context, bare_units=True)
    if period <= 0 or period.denominator != 1:
        raise InvalidRule(f"{context}: the period must be a whole number of microseconds above 0, not {show(match[2])}")
    return whole_number(match[1], context), int(period)


def check_length(text: str, context: str) -> None:
    """Raise InvalidRule for a text that is too long for a rule, a window or a rate, before any pattern is tried."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidRule(f"{context}: a text of {len(text)} characters is too long; the limit is {MAX_CHARACTERS}")


def whole_number(text: str, context: str) -> int:
    """Read a count such as "100" or "50_000"."""
    if len(text) > _MAX_DIGITS:
        raise InvalidRule(f"{context}: {show(text)} is too large")
    return int(text.replace("_", ""))


def duration_text(microseconds: int) -> str:
    """Write a duration in a form that reads back the same: "minute", "90s", "1500ms"."""
    for unit in ("w", "d", "h", "m", "s", "ms"):
        count, rest = divmod(microseconds, _UNIT_US[unit])
        if rest == 0:
            return (
                _SPELLINGS[unit][-1]
                if count == 1 and unit not in ("s", "ms")
                else f"{count if count > 1 else ''}{unit}"
            )
    return f"{microseconds}us"


def rate_text(units: int, period: int) -> str:
    """Write a rate in a form that reads back the same: "10/s", "100/minute", "7/13s"."""
    for unit in ("s", "m", "h", "d"):
        count, rest = divmod(units * _UNIT_US[unit], period)
        if rest == 0:
            return f"{count}/{duration_text(_UNIT_US[unit])}"
    return f"{units}/{duration_text(period)}"


def simplest_fraction(value: float) -> Fraction:
    """Return the fraction with the smallest denominator that rounds to this float: 0.1 is 1/10, 100 / 60 is 5/3."""
    from fractions import Fraction

    exact = Fraction(value)
    if exact.denominator == 1:
        return exact
    below = (exact + Fraction(math.nextafter(value, -math.inf))) / 2
    above = (exact + Fraction(math.nextafter(value, math.inf))) / 2
    return _simplest_between(below, above)


def _simplest_between(low: Fraction, high: Fraction) -> Fraction:
    from fractions import Fraction

    whole = math.floor(low)
    if whole + 1 < high:
        return Fraction(whole + 1)
    if low == whole:
        return whole + Fraction(1, math.floor(1 / (high - whole)) + 1)
    return whole + 1 / _simplest_between(1 / (high - whole), 1 / (low - whole))


def _number(value: object, argument: str, accepted: str) -> Fraction:
    from fractions import Fraction

    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise TypeError(f"{argument} must be {accepted}, not {show(value)}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRule(f"{argument} must be finite, not {show(value)}")
        return simplest_fraction(value)
    return Fraction(value)


def _duration_us(text: str, context: str, *, bare_units: bool = False) -> Fraction:
    from fractions import Fraction

    check_length(text, context)
    one_duration = re.compile(_ONE_DURATION)
    total = 0  # in units of 10^-30 us: fractions would take much longer to add
    position = 0
    while position < len(text) or position == 0:
        match = one_duration.match(text, position)
        if match is None or not (match[1] or bare_units):
            raise InvalidRule(
                f"{context}: cannot read {show(text[position:])} as a duration; write '250ms', '1m' or '1h30m'"
            )
        unit = UNITS.get(match[2] if match[2] in UNITS else match[2].lower())
        if unit is None:
            raise InvalidRule(f"{context}: unknown unit {show(match[2])}; use {ACCEPTED_UNITS}")
        if len(match[1] or "") > _MAX_DIGITS:
            raise InvalidRule(f"{context}: {show(match[1])} is too large")
        whole, _, decimals = (match[1] or "1").replace("_", "").partition(".")
        total += int(whole + decimals) * unit * 10 ** (_MAX_DIGITS - len(decimals))
        position = match.end()
    return Fraction(total, 10**_MAX_DIGITS)


def seconds(microseconds: int) -> int | float:
    """Convert microseconds to seconds, as an int if that is exact."""
    whole, rest = divmod(microseconds, SECOND_US)
    return microseconds / SECOND_US if rest else whole
