"""What the batches of threads and those of event loops share: how large they are, and what a failure tells."""

from __future__ import annotations

MOST_IN_A_BATCH = 128
_FAIR_NS = 20_000_000  # a batch that had less time than this left does not tell whether Redis is away


def tells(error: BaseException | None, asked_ns: int, sent_ns: int, ends_ns: int, took_ns: int) -> bool:
    """Tell whether a batch that failed tells that Redis is away, and not only that it had waited in our queue.

    One that ran out of time had twice the time that the latest answer took, or nearly all of its own.
    """
    if error is not None and "Timeout" not in type(error).__name__:
        took_ns = 0  # another error takes no time to tell
    return ends_ns - sent_ns >= min(max(_FAIR_NS, 2 * took_ns), 0.9 * (ends_ns - asked_ns))
