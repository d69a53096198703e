"""The drawing arithmetic of the page, tested in JavaScript by node's own test runner."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from ratekeeper.playground.configs import listing

HERE = Path(__file__).parent
ADVICE = "node was not found, and the page's arithmetic is tested with it; on Debian: apt-get install nodejs"


def test_the_arithmetic_of_the_drawings():
    node = shutil.which("node")
    assert node is not None, ADVICE
    files = sorted(HERE.glob("*.test.mjs"))
    assert len(files) == 2
    environment = {**os.environ, "ALGORITHMS": json.dumps(listing())}
    run = subprocess.run([node, "--test", *files], capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
