"""Drills on policy files."""

from __future__ import annotations

from collections import Counter

from tests.policies import generated
from tests.policies.test_fuzzed import compared, loaded
from tests.torture import crowds, progress

MOST = 0.1  # seconds, until a file is refused


def policy_files(count: int = 10_000, first: int = 0) -> str:
    """Made-up policy files are refused in time and with a reason, or mean what an independent reading of them says."""
    came: Counter[str] = Counter()
    slowest = 0.0
    with crowds.logged():  # what its rules would have denied, and what they do not limit
        for seed in range(first, first + count):
            kind, took = compared(seed)
            came[kind] += 1
            slowest = max(slowest, took)
            if seed % 500 == 0:
                progress("policy_files", f"{seed:,} files")
    for name, (form, text) in generated.BOMBS.items():
        found, took = loaded(text, form)
        assert found is None, f"{name}: accepted"
        slowest = max(slowest, took)
    assert slowest < MOST * (1 if crowds.is_quiet() else 10), f"a file took {slowest * 1000:.0f} ms"
    told = ", ".join(f"{number:,} {kind}" for kind, number in sorted(came.items()))
    return f"{count:,} files and {len(generated.BOMBS)} bombs: {told}; the slowest took {slowest * 1000:.0f} ms"


DRILLS = {"policy_files": policy_files}
