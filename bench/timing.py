"""How a figure is measured: contestants take turns, round after round, and the median of the rounds counts."""

import gc
import random
import statistics
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import process_time_ns
from typing import TypeVar

Hit = Callable[[str], object]
Label = TypeVar("Label", bound=Hashable)
Sample = TypeVar("Sample")


@dataclass(frozen=True)
class Measurement:
    """One figure: the case, the contestant, and the sample of each round in `unit`."""

    case: str
    algorithm: str
    contestant: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Target:
    """A figure that the project promises, and what was measured."""

    promise: str
    measured: str
    met: bool


def interleave(
    what: str,
    tasks: Mapping[Label, Callable[[], Sample]],
    rounds: int,
) -> dict[Label, tuple[Sample, ...]]:
    """Run every task once per round, in a new order each time, so that a slow machine affects all of them alike."""
    order = list(tasks)
    shuffle = random.Random(what).shuffle
    samples: dict[Label, list[Sample]] = {label: [] for label in tasks}
    gc.collect()
    gc.freeze()  # otherwise the benchmark's own objects would slow each garbage collection
    for number in range(1, rounds + 1):
        print(f"{what}: round {number} of {rounds}", file=sys.stderr)
        shuffle(order)
        for label in order:
            samples[label].append(tasks[label]())
            clean_up()
    return {label: tuple(values) for label, values in samples.items()}


def clean_up() -> None:
    """Finish the clean-up left to a timer thread or to the garbage collector; otherwise the next task pays for it."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    gc.collect()


def per_decision(hit: Hit, keys: Sequence[str]) -> float:
    """Return the microseconds that one decision takes on average over these keys.

    This is the CPU time of all threads of this process. Measured as elapsed time, a busy machine would slow long
    samples more often than short ones, and so slow contestants more than fast ones.
    """
    started = process_time_ns()
    for key in keys:
        hit(key)
    return (process_time_ns() - started) / len(keys) / 1000


def names(numbers: Iterable[int]) -> list[str]:
    """Return keys as a request brings them: new strings whose hash is not computed yet."""
    return [f"user:{number}" for number in numbers]


def random_names(population: int, count: int, seed: int = 1) -> Callable[[], list[str]]:
    """Return a function that returns the same random choice of keys, as new strings at every call."""
    numbers = random.Random(seed).choices(range(population), k=count)
    return lambda: names(numbers)
