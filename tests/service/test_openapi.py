"""The description of the service is true: schemathesis requests everything that it promises, and what it forbids."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(sys.version_info < (3, 11), reason="schemathesis needs Python 3.11 or newer")
def test_schemathesis_finds_no_violation(served):
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}openapi.json"]
    ended = subprocess.run(
        [*command, "--max-examples", "10", "--generation-deterministic"],
        check=False,
        cwd=ROOT,  # where its configuration is
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    generated, passed = re.search(r"(\d+) generated, (\d+) passed", ended.stdout).groups()
    assert int(generated) == int(passed) > 100


def test_every_way_to_be_turned_away_is_described(served):
    paths = served.ask("GET", "/openapi.json").json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            expected = {"403", "421"} | ({"400", "408", "413", "415", "503"} if method == "post" else set())
            assert expected <= set(operation["responses"]), path


def test_every_route_is_described(served):
    paths = served.ask("GET", "/openapi.json").json()["paths"]
    v1 = {f"/v1/{name}" for name in ("hit", "hit/batch", "peek", "charge", "refund", "reset", "inspect", "live", "top")}
    assert set(paths) == v1 | {"/healthz", "/readyz", "/metrics", "/openapi.json"}
