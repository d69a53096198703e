"""Top talkers: the keys that were admitted and denied the most, by cost, in the latest one to two minutes.

Each worker keeps a summary of this minute and of the one before it, in bounded memory, and writes them down for the
other workers every second.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ratekeeper.service.heavy_hitters import HeavyHitters
from ratekeeper.stores.protocol import Key

By = Literal["admitted", "denied"]
Talker = tuple[str, Key]
"""A policy and the name of a rule, with a slash between them, and a key. A client's rule has no policy, and its text is
its name."""

KINDS: tuple[By, By] = ("admitted", "denied")
MAX_TALKERS = 1_000
"""One part in so many of all cost is how much the cost of a key may be too low."""
_MINUTE_NS = 60_000_000_000
_MAX_LABELS = 4_000
_Minute = Mapping[By, HeavyHitters[Talker]]


class TalkerLabels(dict[str, str]):
    """What talkers begin with, by the name or the text of the rule."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.policy = policy

    def __missing__(self, rule: str) -> str:
        if len(self) >= _MAX_LABELS:
            self.clear()
        label = self[rule] = f"{self.policy}/{rule}"
        return label


class Talkers:
    """The top talkers of one worker."""

    def __init__(self) -> None:
        self._minutes: dict[int, _Minute] = {}  # by number, on the monotonic clock, which workers share
        self.admitted: HeavyHitters[Talker] = HeavyHitters(MAX_TALKERS)
        """What this minute's admitted costs are added to."""
        self.denied: HeavyHitters[Talker] = HeavyHitters(MAX_TALKERS)

    def begin(self, now_ns: int) -> None:
        """Begin a minute unless it has begun, and forget all but the one before it."""
        number = now_ns // _MINUTE_NS
        minute = self._minutes.get(number) or {kind: HeavyHitters(MAX_TALKERS) for kind in KINDS}
        self._minutes = {known: each for known, each in self._minutes.items() if known == number - 1} | {number: minute}
        self.admitted, self.denied = minute["admitted"], minute["denied"]

    def latest(self, by: By, now_ns: int) -> Iterator[HeavyHitters[Talker]]:
        """Yield the summaries of this minute and the one before it."""
        this = now_ns // _MINUTE_NS
        for number, minute in self._minutes.items():
            if this - 1 <= number <= this:
                yield minute[by]

    def write(self, path: Path) -> None:
        """Write all of it to a file, which others find whole at any moment."""
        minutes = {
            number: {kind: (each.missed, each.taken, each.weights) for kind, each in minute.items()}
            for number, minute in self._minutes.items()
        }
        beside = path.with_suffix(".new")
        beside.write_bytes(pickle.dumps(minutes))
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Talkers:
        """Read what a worker has written, or nothing if it has written nothing."""
        talkers = cls()
        with suppress(FileNotFoundError):
            for number, minute in pickle.loads(path.read_bytes()).items():  # noqa: S301 - only workers can write it
                talkers._minutes[number] = {kind: HeavyHitters(MAX_TALKERS, *each) for kind, each in minute.items()}
        return talkers


def seconds_covered(now_ns: int) -> float:
    """Return how many seconds this minute and the one before it have had."""
    return 60 + now_ns % _MINUTE_NS / 1e9
