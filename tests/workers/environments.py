"""Environments of their own for task queues, which need other clients of Redis than the rest, and processes in them."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 120  # seconds; on a busy machine, a worker takes long to start


@functools.cache
def python_of(name):
    """Return the Python of an environment; the first test that needs it makes it, while other tests run."""
    made = ROOT / ".venvs" / name / f".{name}"
    made.parent.parent.mkdir(exist_ok=True)
    with (made.parent.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "--silent", str(made.relative_to(ROOT))]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "COVERAGE"))}
        making = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if making.returncode:
        raise AssertionError(
            f"the environment for {name} cannot be made, which needs make and PyPI; run `{' '.join(command)}`, "
            f"which said:\n{making.stdout}{making.stderr}"
        )
    return made.parent / "bin" / "python"


class Worker:
    """A worker, or another process in an environment; what it prints to standard error explains failures."""

    def __init__(self, name, *arguments, **environment):
        self.process = subprocess.Popen(
            [python_of(name), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self):
        """Wait until it has done its work."""
        self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0

    def stop(self):
        self.process.terminate()
        try:
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


class Interpreter(Worker):
    """Evaluates expressions with the names of a module in an environment."""

    def __init__(self, name, module, **environment):
        loop = "for line in sys.stdin: print(json.dumps(eval(line)), flush=True)"
        super().__init__(name, "-c", f"import json, sys\nfrom {module} import *\n{loop}", **environment)

    def __call__(self, expression):
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.communicate()  # ends its input
