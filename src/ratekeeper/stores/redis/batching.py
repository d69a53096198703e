"""What both kinds of batches share: how large they may be, and what a failure says about the server."""

from __future__ import annotations

MAX_IN_A_BATCH = 128
_FAIR_NS = 20_000_000  # a batch with less time left than this says nothing about Redis


def shows_away(error: BaseException | None, asked_ns: int, sent_ns: int, ends_ns: int, took_ns: int) -> bool:
    """Return whether a failed batch shows that Redis is away, and not only that it waited too long in our queue.

    A time-out shows it if the batch had twice the time that the latest answer took, or nearly all of its own time.
    """
    if error is not None and "Timeout" not in type(error).__name__:
        took_ns = 0  # any other error counts at once
    return ends_ns - sent_ns >= min(max(_FAIR_NS, 2 * took_ns), 0.9 * (ends_ns - asked_ns))
