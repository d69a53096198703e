"""The servers that the tests find, and what `make test-all` runs on them; all programs here are stand-ins."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import servers

TEST_ALL = Path(__file__).parents[1] / "tools" / "test_all.sh"


def program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def server(path, version):
    return program(path, f"echo '{path.name} v={version} sha=00000000:0'")


# Which servers are found


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without a server, of which nothing is known yet."""
    monkeypatch.setenv("PATH", f"{tmp_path}/path")
    monkeypatch.setattr(servers, "MORE", tmp_path / "more")
    monkeypatch.setattr(servers.importlib.util, "find_spec", lambda _: None)
    monkeypatch.delenv("RATEKEEPER_SERVERS", raising=False)
    for function in (servers.found, servers.programs):
        monkeypatch.setattr(servers, function.__name__, function.__wrapped__)
    return tmp_path


def test_servers_are_found_on_the_path_and_among_those_that_were_unpacked(machine):
    ours = {
        "7.0": server(machine / "path" / "redis-server", "7.0.15"),
        "8.0": server(machine / "more" / "trixie" / "bin" / "redis-server", "8.0.2"),
        "8.1": server(machine / "more" / "trixie" / "bin" / "valkey-server", "8.1.1"),
    }
    assert servers.found() == ours


def test_the_newest_server_is_the_last_one_by_number(machine):
    for release, version in {"bookworm": "9.1.2", "trixie": "10.0.0"}.items():
        server(machine / "more" / release / "bin" / "redis-server", version)
    assert list(servers.found()) == ["9.1", "10.0"]
    assert list(servers.programs()) == ["10.0"]
    assert servers.newest() == "10.0"


def test_of_two_servers_of_one_version_the_one_on_the_path_is_used(machine):
    own = server(machine / "path" / "redis-server", "7.0.15")
    server(machine / "more" / "trixie" / "bin" / "redis-server", "7.0.9")
    assert servers.found() == {"7.0": own}


@pytest.mark.parametrize("script", ["exit 127", "echo no version", "exec /missing"])
def test_a_server_that_does_not_run_here_is_left_out(machine, script):
    program(machine / "more" / "trixie" / "bin" / "redis-server", script)
    own = server(machine / "path" / "valkey-server", "8.1.1")
    assert servers.found() == {"8.1": own}


def test_a_machine_without_a_server_says_how_to_get_one(machine):
    with pytest.raises(AssertionError, match="apt-get install redis-server"):
        servers.found()


@pytest.mark.parametrize(
    ("wanted", "versions"),
    [("all", ["7.0", "8.0", "8.1"]), ("8.0", ["8.0"]), ("8.1,7.0", ["7.0", "8.1"]), ("", ["8.1"])],
)
def test_the_servers_to_test_on_can_be_chosen(machine, monkeypatch, wanted, versions):
    for version in ("7.0", "8.0", "8.1"):
        server(machine / "more" / version / "bin" / "redis-server", version)
    monkeypatch.setenv("RATEKEEPER_SERVERS", wanted)
    assert list(servers.programs()) == versions


def test_a_server_that_is_wanted_and_missing_is_an_error(machine, monkeypatch):
    server(machine / "path" / "redis-server", "7.0.15")
    monkeypatch.setenv("RATEKEEPER_SERVERS", "7.0,6.2")
    with pytest.raises(AssertionError, match=r"no server of version 6\.2; there are 7\.0"):
        servers.programs()


# make test-all

# Says what it is asked to do, and fails where FAILS names a part of that.
PYTHON = """
case "$*" in
    --version) echo Python 3.99.1; exit ;;
    *tests.servers* | *"import servers"*) echo 7.0 8.0; exit ;;
    *"--target "*) mkdir -p "$(echo "$*" | sed 's/.*--target \\([^ ]*\\).*/\\1/')" ;;
esac
said="$RATEKEEPER_SERVERS ${PYTHONPATH##*/} $*"
echo "$said" >>"$LOG"
case "$said" in *"$FAILS"*) echo 1 failed; exit 1 ;; esac
echo "Redis or Valkey $RATEKEEPER_SERVERS"
echo 9 passed
"""


@pytest.fixture
def run_all(tmp_path):
    """Run it on a machine with one Python; return its status, its summary, and what it has let Python do."""
    program(tmp_path / "path" / "python3.99", PYTHON)
    program(tmp_path / ".venvs" / "3.99" / "bin" / "python", PYTHON)
    (tmp_path / ".venvs" / "3.99" / ".test").touch()  # everything is installed
    (tmp_path / ".venvs" / "servers" / "trixie").mkdir(parents=True)
    (tmp_path / ".venvs" / "servers" / "trixie" / ".complete").touch()

    def run(*versions, fails="nothing"):
        log = tmp_path / "log"
        log.write_text("")
        own = {"PATH": f"{tmp_path}/path:{os.environ['PATH']}", "LOG": str(log), "FAILS": fails, "ARGS": "-q"}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
        ended = subprocess.run(
            ["sh", TEST_ALL, *versions], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return ended.returncode, ended.stdout.strip().rpartition("\n\n")[2].splitlines(), log.read_text().splitlines()

    return run


ON_REDIS = " ".join(
    ["tests/stores/redis tests/conformance tests/torture"]
    + [f"tests/test_{name}.py" for name in ("fallback", "notices", "leases")]
)
EVERYTHING = [
    "3.99: Redis or Valkey all: 9 passed",
    "3.99, server 7.0: Redis or Valkey 7.0: 9 passed",
    "3.99, server 8.0: Redis or Valkey 8.0: 9 passed",
    "3.99, redis-py 5.0.0: Redis or Valkey all: 9 passed",
    "3.99, redis-py 6.4.0: Redis or Valkey all: 9 passed",
    "3.99, redis-py 7.4.0: Redis or Valkey all: 9 passed",
]


def test_everything_is_tested_with_each_python_each_server_and_each_client(run_all):
    status, summary, done = run_all("3.99", "3.98")
    assert status == 0
    assert summary == [EVERYTHING[0], "3.98: not on this machine", *EVERYTHING[1:]]
    assert [line for line in done if "pytest" in line] == [
        "all  -m pytest -q",
        f"7.0  -m pytest -q {ON_REDIS}",
        f"8.0  -m pytest -q {ON_REDIS}",
        *(f"all redis-{release} -m pytest -q {ON_REDIS}" for release in ("5.0.0", "6.4.0", "7.4.0")),
    ]


@pytest.mark.parametrize(
    ("fails", "what"), [("8.0  -m pytest", 2), ("redis-6.4.0 -m pytest", 4), ("all  -m pytest", 0)]
)
def test_a_run_that_fails_is_reported_and_the_others_go_on(run_all, fails, what):
    status, summary, _ = run_all("3.99", fails=fails)
    assert status == 1
    assert [index for index, line in enumerate(summary) if line.endswith("1 failed")] == [what]
    assert len(summary) == 6


def test_a_client_that_cannot_be_installed_is_reported_and_tried_again(run_all):
    status, summary, _ = run_all("3.99", fails="redis==6.4.0")
    assert status == 1
    assert summary == [*EVERYTHING[:4], "3.99, redis-py 6.4.0: cannot be installed", EVERYTHING[5]]
    status, summary, done = run_all("3.99")
    assert (status, summary) == (0, EVERYTHING)
    assert [line.split("redis==")[1].split()[0] for line in done if "install" in line] == ["6.4.0"]


def test_where_no_python_is_found_nothing_has_passed(run_all):
    status, summary, _ = run_all("3.97")
    assert (status, summary) == (1, ["3.97: not on this machine"])
