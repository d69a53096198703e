"""The description of the service is true: schemathesis requests everything that it promises, and what it forbids."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.serving import Served

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def with_policies():
    served = Served("memory://", "--policies", "store")
    policies = {"policies": {"api": {"rules": [{"name": "user", "limit": "9/s", "key": "{user|nobody}"}]}}}
    served.ask("PUT", "/v1/policies", json=policies, headers={"if-match": "0"}).raise_for_status()
    yield served
    served.stop()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="schemathesis needs Python 3.11 or newer")
def test_schemathesis_finds_no_violation(with_policies):
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{with_policies.url}openapi.json"]
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
            expected = {"403", "421"} | ({"400", "408", "413", "415", "503"} if method in ("post", "put") else set())
            assert expected <= set(operation["responses"]), path


def test_every_route_is_described(served):
    paths = served.ask("GET", "/openapi.json").json()["paths"]
    v1 = {f"/v1/{name}" for name in ("hit", "hit/batch", "peek", "charge", "refund", "reset", "inspect", "live", "top")}
    v1 |= {f"/v1/policies{name}" for name in ("", "/reload", "/history", "/history/{version}")}
    v1 |= {"/v1/overrides", "/v1/overrides/{id}", "/v1/explain", "/v1/audit", "/v1/forward-auth/{policy}"}
    assert set(paths) == v1 | {"/healthz", "/readyz", "/metrics", "/openapi.json"}
