"""Slabs: the tallies of workers, each in files that all workers read, so that each can add up what all have counted.

A worker writes its own slab only. One that replaces another one, under its number, goes on with its slab. So what a
worker has counted stays there, to the last count, whatever becomes of it.

A slab is a file of integers, and a file with a line for each series that says what they count. A line is written once
its integers are there.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ratekeeper.clock import Clock, stopwatch
from ratekeeper.metrics.families import BY_NAME, Family, Labels, Sample
from ratekeeper.metrics.tallies import WIDEST, Tally

MAX_SLAB_SERIES = 20_000
OWN = 1_024
"""The integers at the beginning of a slab that are for the worker's own use."""
_BEAT, _PID, _LOST = OWN - 1, OWN - 2, OWN - 2 - WIDEST
_ALIVE_NS = 5_000_000_000  # a worker that gives no sign of life for this long is not alive
_INTEGER = 8  # bytes
_STEP = 65_536  # bytes that are allocated at a time: a full disk would end a process that maps what is not allocated
_LENGTH = -(-(OWN + (MAX_SLAB_SERIES + len(BY_NAME)) * WIDEST) * _INTEGER // _STEP) * _STEP
_log = logging.getLogger("ratekeeper")


class Slab(Tally):
    """The tally of this worker. OSError if there is no room for it."""

    def __init__(self, directory: Path, number: int, clock: Clock = stopwatch) -> None:
        super().__init__(MAX_SLAB_SERIES)
        self._clock = clock
        self._names = os.open(directory / f"names-{number}", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        series, length = _series_in(os.pread(self._names, os.fstat(self._names).st_size, 0))
        os.ftruncate(self._names, length)  # the last line may be torn: its writer may have been killed
        self._length = length
        self._count = len(series)
        self._file = os.open(directory / f"counts-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        self._allocated = _allocated(self._count) if os.fstat(self._file).st_size else 0
        os.ftruncate(self._file, _LENGTH)
        self._allocate(OWN * _INTEGER)
        self.cells = memoryview(mmap.mmap(self._file, _LENGTH)).cast("q")
        for index, (family, labels) in enumerate(series):
            self.places[family.name, labels] = OWN + index * WIDEST
        self.cells[_PID] = os.getpid()
        self.beat()

    def beat(self) -> None:
        """Give a sign of life."""
        self.cells[_BEAT] = self._clock()

    def make_room(self, family: Family, labels: Labels) -> int:
        """Return where the integers of a new series begin, and write down what they count."""
        at = OWN + self._count * WIDEST
        line = json.dumps([family.name, *labels]).encode() + b"\n"
        try:
            self._allocate((at + WIDEST) * _INTEGER)
            if os.write(self._names, line) < len(line):
                raise OSError("the disk is full")
        except OSError as error:
            os.ftruncate(self._names, self._length)
            _log.warning("metrics: %s%s is not counted, for want of room: %s", family.name, labels, error)
            return _LOST
        self._count += 1
        self._length += len(line)
        return at

    def close(self) -> None:
        """Close the files; what was counted stays in them."""
        os.close(self._names)
        os.close(self._file)

    def _allocate(self, length: int) -> None:
        """Make sure that the file has room on the disk up to this length."""
        while self._allocated < length:
            os.pwrite(self._file, bytes(_STEP), self._allocated)
            self._allocated += _STEP


class SlabReader:
    """The slab of another worker."""

    def __init__(self, directory: Path, number: int, clock: Clock = stopwatch) -> None:
        self._clock = clock
        self._names = directory / f"names-{number}"
        self._read = 0
        self._series: list[tuple[Family, Labels]] = []
        with (directory / f"counts-{number}").open("rb") as file:
            self.cells: Sequence[int] = memoryview(mmap.mmap(file.fileno(), _LENGTH, prot=mmap.PROT_READ)).cast("q")

    @property
    def is_alive(self) -> bool:
        """Whether its worker has given a sign of life lately."""
        return self._clock() - self.cells[_BEAT] < _ALIVE_NS

    @property
    def process_id(self) -> int:
        """The process that last wrote it."""
        return self.cells[_PID]

    def samples(self) -> Iterator[Sample]:
        """Yield the values of each series now."""
        with self._names.open("rb") as file:
            file.seek(self._read)
            series, length = _series_in(file.read())
        self._series += series
        self._read += length
        for index, (family, labels) in enumerate(self._series):
            at = OWN + index * WIDEST
            yield Sample(family, labels, list(self.cells[at : at + family.width]))


def _allocated(series: int) -> int:
    """Return how many bytes are allocated for so many series."""
    return -(-(OWN + series * WIDEST) * _INTEGER // _STEP) * _STEP


def _series_in(content: bytes) -> tuple[list[tuple[Family, Labels]], int]:
    """Return the series in the whole lines of a content, and how long these are."""
    length = content.rfind(b"\n") + 1
    lines = [json.loads(line) for line in content[:length].splitlines()]
    return [(BY_NAME[name], tuple(labels)) for name, *labels in lines], length
