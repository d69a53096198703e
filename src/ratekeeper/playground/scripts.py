"""The Lua of each algorithm, as it runs on Redis."""

from __future__ import annotations

import functools
from importlib.resources import files

_STEPS = {
    "fixed-window": "fixed_window",
    "sliding-window-log": "sliding_window_log",
    "sliding-window-counter": "sliding_window_counter",
    "token-bucket": "bucket",
    "leaky-bucket": "bucket",
}


@functools.cache
def script_of(algorithm: str) -> bytes:
    """Return the step of an algorithm in Lua."""
    return files("ratekeeper.algorithms").joinpath(f"{_STEPS[algorithm]}.lua").read_bytes()
