"""The quickest peer in another language: rate-limiter-flexible on Node.js, where that is there or can be had."""

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
    """Why it cannot be measured; empty when it can, its packages installed if they were not."""
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
    """The same load as ours, made and timed by the Node.js process itself, after as much to warm up."""
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
