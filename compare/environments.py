"""The environment of a peer: its newest release beside this library, in a directory of its own below `.venvs`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

_VERSIONS = """
import platform, sys
from importlib.metadata import version
print(platform.python_version(), *map(version, sys.argv[1:]))
"""


class Environment:
    """An environment in which programs of a peer and of this library run."""

    def __init__(self, name: str, packages: Sequence[str], extras: str) -> None:
        directory = ROOT / ".venvs" / f"compare-{name}"
        self.python = directory / "bin" / "python"
        self._packages = [re.split(r"[\[<>=]", package)[0] for package in packages]
        command = [ROOT / "tools" / "venv.sh", directory, f".[{extras}]", *packages, "time-machine"]
        subprocess.run(command, cwd=ROOT, check=True)

    def run(self, *arguments: str, **variables: str) -> str:
        """Run a module of this package, and return what it prints."""
        command = [self.python, "-m", *arguments]
        environment = {**os.environ, **variables}
        return subprocess.run(
            command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=300
        ).stdout

    def versions(self) -> Mapping[str, str]:
        """Return the releases of the peer and of what was installed with it."""
        found = subprocess.run(
            [self.python, "-c", _VERSIONS, *self._packages], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split()
        return dict(zip(["Python", *self._packages], found, strict=True))
