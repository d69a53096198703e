"""--on-error, --local-share and --lease: what the service does about its store, where a policy says nothing."""

import pytest

from ratekeeper.cli import main
from tests import servers
from tests.service.serving import Served

POLICIES = """
[[policies.plain.rules]]
name = "user"
limit = "fixed-window 100/day"
key = "{user}"

[policies.own]
on_error = "open"
local_share = 0.5

[[policies.own.rules]]
name = "user"
limit = "fixed-window 100/day"
key = "{user}"
"""


@pytest.fixture
def serve(tmp_path):
    """Serve policies without a store."""
    (tmp_path / "limits.toml").write_text(POLICIES)
    started = []

    def start(*options):
        gone = f"redis://127.0.0.1:{servers.free_port()}"
        started.append(Served(gone, "--policies", str(tmp_path / "limits.toml"), *options))
        return started[-1]

    yield start
    for served in started:
        served.stop()


def hit(served, policy):
    return served.ask("POST", "/v1/hit", json={"policy": policy, "attributes": {"user": "ada"}})


def remaining(served, rule="fixed-window 100/day"):
    return served.ask("POST", "/v1/hit", json={"key": "ada", "rule": rule}).json()["remaining"]


def test_a_policy_counts_before_the_option(serve):
    served = serve("--on-error", "closed")
    assert [hit(served, policy).status_code for policy in ("plain", "own")] == [429, 200]
    assert served.ask("POST", "/v1/hit", json={"key": "ada", "rule": "100/day"}).status_code == 429


def test_without_its_store_a_service_may_refuse_to_decide(serve):
    served = serve("--on-error", "raise")
    assert [hit(served, policy).status_code for policy in ("plain", "own")] == [503, 200]
    assert served.ask("GET", "/readyz").json() == {"status": "degraded"}


@pytest.mark.parametrize(
    ("options", "share"), [(("--local-share", "1/4"), 25), (("--workers", "2"), 50), (("--workers", "1"), 100)]
)
def test_each_process_enforces_its_share_alone(serve, options, share):
    served = serve(*options)
    assert hit(served, "plain").json()["remaining"] == share - 1
    assert remaining(served) == share - 1


@pytest.mark.parametrize("share", ["0", "2", "half", "1/0"])
def test_a_share_that_cannot_be_is_told(capsys, share):
    with pytest.raises(SystemExit):
        main(["serve", "--local-share", share])
    assert f"--local-share: must be a number above 0 and at most 1, not '{share}'" in capsys.readouterr().err
