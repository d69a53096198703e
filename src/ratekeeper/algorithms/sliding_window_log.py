"""Sliding window log: remember when each unit was admitted; a unit counts until it is one window old."""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratekeeper import rates
from ratekeeper.algorithms.rule import EMPTY, Rule, Step, Variant
from ratekeeper.algorithms.window import Windowed

if TYPE_CHECKING:
    from fractions import Fraction

# One flat array of integers per key: where the live entries begin, the time of the first of them (0: not noted here)
# and the total before it; then two integers per entry: its time, and the running total of all units up to and
# including it. Both columns only increase, so a search finds what has expired and which entry must expire to make
# room. An entry takes 16 bytes, whatever the limit.
#
# A log is changed in place. Each line that writes is one operation, which nothing interrupts, and is right without the
# lines after it: a signal handler that raises, or a fork, finds the log as it was before the step or as it is after it.
Log = Any  # array("q"), or nothing for an untouched key
_HEAD, _OLDEST, _BASE = 0, 1, 2
_FIRST = 3
_TIME, _TOTAL = 0, 1
_BEGIN = array("q", (_FIRST, 0))
_SHORT = 128  # a shorter log frees expired entries at once, a longer one when half of it has expired
_FAR = 1 << 61
# A log on Redis is a list of blocks.
_BLOCK_HEADER = 27  # bytes before the entries
_BLOCK_ENTRIES = 32
_TIME_BYTES = 5
_WIDTHS = {b"\3": 3, b"\6": 6}  # bytes of a total, by the block's first byte
_TURN = 1 << 48
_SUM_BYTES = 8  # in a database, a checksum comes first


def _seek(log: Log, entry: int, column: int, bound: int) -> int:
    """Return the first entry from `entry` on whose column is above `bound`, or the length of the log.

    The strides double and then halve again, since the entry is almost always close to the head.
    """
    length = len(log)
    if entry == length or log[entry + column] > bound:
        return entry
    stride = 2
    while entry + stride < length and log[entry + stride + column] <= bound:
        entry += stride
        stride *= 2
    beyond = min(entry + stride, length)
    while beyond - entry > 3:  # each round makes this less, whatever the log holds
        middle = entry + (beyond - entry) // 4 * 2
        if log[middle + column] <= bound:
            entry = middle
        else:
            beyond = middle
    return beyond


def _forget_expired(log: Log, head: int) -> int:
    """Let the live entries begin at `head`; return its position after expired entries have been freed."""
    if head == log[_HEAD]:
        return head
    base = log[head - 1]  # the integer before an entry is the total before it
    if base > _FAR:  # count from zero again, long before a total exceeds 64 bits
        kept = log[head:]
        for total in range(_TOTAL, len(kept), 2):
            kept[total] -= base
        log[:] = array("q", (_FIRST, 0, 0)) + kept
        head = _FIRST
    elif len(log) < _SHORT or head > _FIRST + len(log) // 2:
        log[: head - 1] = _BEGIN
        head = _FIRST
    else:
        log[_OLDEST] = 0
        log[_HEAD] = head
        log[_BASE] = base
    log[_OLDEST] = log[head]
    return head


def _append(log: Log, head: int, used: int, at: int, cost: int) -> Log:
    if not used:
        return array("q", (_FIRST, at, 0, at, cost))
    total = log[-1] + cost
    if log[-2] == at:
        log[-1] = total
    else:
        log.fromlist([at, total])
    _forget_expired(log, head)
    return log


class SlidingWindowLog(Windowed):
    """Never more than `limit` units in any window, exactly. Its memory grows with the limit."""

    __slots__ = ()

    algorithm = "sliding-window-log"
    aliases = ("moving-window",)
    short_name = "sl"
    script = "sliding_window_log"
    stored_as = "list"
    variants = (
        Variant(
            "Sliding window log",
            "Remember when each request came. It counts until it is one window old.",
            picture="log",
            suits={"delay": "no", "bursts": "no", "exact": "yes", "memory": "no"},
            reason="It remembers each request, so that no window, wherever it begins, ever has more than the limit.",
        ),
    )

    def with_headroom(self, share: Fraction) -> Rule:
        """Return the same limit in a longer window: requests that are this much of a window late find room again."""
        from fractions import Fraction

        return self.__replace__(window=Fraction(math.ceil(self.window_us * (1 + share)), rates.SECOND_US))

    def load(self, value: Sequence[bytes]) -> Log:
        log = array("q", (_FIRST, 0, 0))
        ends = None  # the total up to the end of the block before, as it is stored
        for block in value:
            width, size = block[:1], len(block) - _BLOCK_HEADER
            entry_size = _TIME_BYTES + _WIDTHS.get(width, size)
            if not 0 < size <= _BLOCK_ENTRIES * entry_size or size % entry_size:
                raise ValueError(f"{len(block)} bytes are no block")
            begins, stored, before = int.from_bytes(block[1:8], "big"), int.from_bytes(block[8:14], "big"), log[-1]
            if ends not in (None, stored):
                raise ValueError("a block is missing")
            total = before
            for at in range(_BLOCK_HEADER, len(block), entry_size):
                time = begins + int.from_bytes(block[at : at + _TIME_BYTES], "big")
                total = before + int.from_bytes(block[at + _TIME_BYTES : at + entry_size], "big")
                if total < log[-1] or time < log[-2]:
                    raise ValueError("entries are not in order")
                if total > log[-1]:  # an entry that was given back has no units left
                    log.extend((time, total))
            ends = (stored + total - before) % _TURN
        log[_OLDEST] = log[_FIRST] if len(log) > _FIRST else 0
        return log

    def dump(self, log: Log) -> bytes:
        head = log[_HEAD]
        kept: array[int] = array("q", (log[head], log[head - 1])) + log[head:]  # without what has expired
        if sys.byteorder == "big":
            kept.byteswap()
        value = kept.tobytes()
        return zlib.crc32(value).to_bytes(_SUM_BYTES, "little") + value

    def restore(self, value: Any) -> Log:
        if zlib.crc32(value[_SUM_BYTES:]).to_bytes(_SUM_BYTES, "little") != value[:_SUM_BYTES]:
            raise ValueError(f"{len(value)} bytes are no log, or it was damaged")
        log = array("q", (_FIRST,))
        log.frombytes(value[_SUM_BYTES:])
        if sys.byteorder == "big":
            log.byteswap()
            log[_HEAD] = _FIRST
        if len(log) <= _FIRST or not len(log) % 2:
            raise ValueError(f"{len(log)} integers are no log")
        return log

    def _usage_at(self, log: Log, now: int) -> tuple[int, int, int, int]:
        """Return the time of a decision at `now`, where live entries begin, the total before them and their sum."""
        window = self.window_us
        if not log or log[-2] > now + window:
            return now, _FIRST, 0, 0
        at = max(now, log[-2])  # if the clock stepped back, decide at the newest unit's time
        head = log[_HEAD]
        expired = at - window
        if log[_OLDEST] <= expired:
            head = _seek(log, head, _TIME, expired)
        base = log[head - 1]
        return at, head, base, log[-1] - base

    def decide(self, log: Log, now: int, cost: int, consume: bool) -> Step:
        limit = self.limit
        window = self.window_us
        if consume and log and log[-2] < now < log[_OLDEST] + window:  # usual: nothing has expired
            total = log[-1] + cost
            left = limit - total + log[_BASE]
            if left >= 0:
                log.fromlist([now, total])
                return log, True, left, 0, window, 0
        at, head, base, used = self._usage_at(log, now)
        left = limit - used - cost
        if left < 0:
            reset_after = log[-2] + window - now if used else 0
            if cost > limit:
                return log, False, max(0, limit - used), None, reset_after, 0
            leaves = _seek(log, head, _TOTAL, base - left - 1)  # the entry whose expiry makes enough room
            return log, False, max(0, limit - used), log[leaves] + window - now, reset_after, 0
        if consume:
            return _append(log, head, used, at, cost), True, left, 0, at + window - now, 0
        return log, True, limit - used, 0, log[-2] + window - now if used else 0, 0

    def charge(self, log: Log, now: int, cost: int) -> Log:
        at, head, _, used = self._usage_at(log, now)
        room = rates.MAX_USAGE - used
        return _append(log, head, used, at, min(cost, room)) if room else log

    def refund(self, log: Log, now: int, cost: int) -> Log:
        _, head, _, used = self._usage_at(log, now)
        if cost >= used:
            return EMPTY
        head = _forget_expired(log, head)
        left = log[-1] - cost
        if log[-3] < left:
            log[-1] = left
        else:
            last = _seek(log, head, _TOTAL, left - 1)
            log[last + _TOTAL :] = array("q", (left,))
        return log

    def give_back(self, log: Log, now: int, cost: int, charged_at: int, ends_at: int) -> Log:
        """Remove units admitted at `charged_at`, as far as they are still in the window."""
        _, head, _, used = self._usage_at(log, now)
        if not used:
            return log
        head = _forget_expired(log, head)
        entry = _seek(log, head, _TIME, charged_at - 1)
        if entry == len(log) or log[entry] != charged_at:
            return log
        before = log[entry - 1]
        taken = min(cost, log[entry + _TOTAL] - before)
        if taken == used:
            return EMPTY
        kept = log[entry:]
        for total in range(_TOTAL, len(kept), 2):
            kept[total] -= taken
        log[entry:] = kept if kept[_TOTAL] > before else kept[2:]
        log[_OLDEST] = log[head]
        return log

    def expires_at(self, log: array[int]) -> int:
        return log[-2] + self.window_us

    def share(self, log: Log, now: int) -> float:
        return self._usage_at(log, now)[3] / self.limit

    def words(self, log: Log, now: int) -> Mapping[str, object]:
        _, head, base, used = self._usage_at(log, now)
        entries = []
        if used:
            for entry in range(head, len(log), 2):
                entries.append((rates.seconds(log[entry]), log[entry + _TOTAL] - base))
                base = log[entry + _TOTAL]
        return {"count": used, "entries": entries, "window": rates.seconds(self.window_us)}
