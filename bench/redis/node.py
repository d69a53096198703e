"""The fastest peer in another language: rate-limiter-flexible on Node.js, if it is installed or can be installed."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from bench.redis.contestants import Contestant
from bench.redis.load import Load
from bench.redis.server import server
from bench.report import ROOT

NODE = Contestant("rate-limiter-flexible (Node.js)", "fixed window", None, None)
PACKAGES = ("rate-limiter-flexible", "ioredis")
HOME = ROOT / ".venvs" / "node"
SCRIPT = Path(__file__).with_name("flexible.cjs")


@cache
def missing() -> str:
    """Return why it cannot be measured, or an empty string after installing its packages if necessary."""
    if not shutil.which("node"):
        return "node is not on the PATH"
    if all((HOME / "node_modules" / package).exists() for package in PACKAGES):
        return ""
    if not shutil.which("npm"):
        return "npm is not on the PATH"
    HOME.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES], cwd=HOME, capture_output=True, check=False
    )
    return "npm could not install it" if done.returncode else ""


def sample(callers: int, hits: int) -> Load:
    """Run the same load as ours in a Node.js process that times it itself, after a warm-up of the same size."""
    server().empty()
    processor_us = server().processor_us()
    said = subprocess.run(
        ["node", SCRIPT, server().url, str(callers), str(hits)],
        env={**os.environ, "NODE_PATH": str(HOME / "node_modules")},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    processor_us = server().processor_us() - processor_us
    return Load(**json.loads(said), server_us=processor_us / (2 * callers * hits), errors=0)
