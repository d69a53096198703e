"""`--unix-socket FILE`: who reaches the service by it, and what becomes of the file."""

import contextlib
import os
import signal
import socket
import stat

import httpx
import pytest

from ratekeeper.cli import main
from tests.service.serving import Served
from tests.waiters import until

BODY = {"key": "ada", "rule": "1/day"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "limits.sock"


@pytest.fixture
def serve(path):
    """Start services on the socket, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*options, **more):
            def client(_):
                return httpx.Client(base_url="http://localhost", transport=httpx.HTTPTransport(uds=str(path)))

            served = Served(None, "--unix-socket", str(path), *options, client=client, **more)
            stack.callback(served.stop)
            return served

        yield start


def healthy(path):
    """Ask over a connection that is new."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        return client.get("http://localhost/healthz").status_code == 200


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_service_answers_on_the_socket_alone_and_removes_it(serve, path, workers):
    served = serve("--workers", workers)
    assert served.said == f"Listening on http+unix:{path} (press Ctrl-C to stop)\n"
    assert served.ask("POST", "/v1/hit", json=BODY).json()["allowed"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", served.port))
    assert served.stop() == 0
    assert not path.exists()


def test_all_workers_answer(serve, path):
    served = serve("--workers", "2")
    for silent in served.workers:
        os.kill(silent, signal.SIGSTOP)
        try:
            assert healthy(path)
        finally:
            os.kill(silent, signal.SIGCONT)


@pytest.mark.parametrize(("options", "mode"), [((), 0o600), (("--unix-socket-mode", "660"), 0o660)])
def test_only_those_whom_the_permissions_name_reach_it(serve, path, options, mode):
    serve(*options)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_without_a_token_nobody_changes_anything_by_it(serve):
    served = serve()  # a proxy may be behind it
    assert served.ask("POST", "/v1/hit", json=BODY).status_code == 200
    assert served.ask("POST", "/v1/reset", json=BODY).status_code == 403


def test_with_the_token_callers_do(serve):
    served = serve(RATEKEEPER_TOKEN="secret")
    assert served.ask("POST", "/v1/reset", json=BODY, headers={"authorization": "Bearer secret"}).status_code == 200


def test_the_socket_of_a_service_that_was_killed_is_taken_over(serve, path):
    killed = serve()
    killed.process.kill()
    killed.process.wait()
    assert path.exists()
    assert serve().ask("GET", "/healthz").status_code == 200


def test_the_socket_of_another_service_is_left_alone(serve, path, capsys):
    served = serve()
    assert main(["serve", "--unix-socket", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"ratekeeper serve: cannot listen on --unix-socket {path}: another service is listening on it\n"
    )
    assert served.ask("GET", "/healthz").status_code == 200


def test_a_file_that_is_no_socket_is_left_alone(path, capsys):
    path.write_text("precious")
    assert main(["serve", "--unix-socket", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"ratekeeper serve: cannot listen on --unix-socket {path}: the file already exists and is not a socket\n"
    )
    assert path.read_text() == "precious"


def test_a_directory_that_is_not_there_is_told(tmp_path, capsys):
    assert main(["serve", "--unix-socket", str(tmp_path / "no" / "limits.sock")]) == 2
    assert capsys.readouterr().err.endswith("limits.sock: No such file or directory\n")


def test_permissions_that_are_none_are_told(path, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--unix-socket", str(path), "--unix-socket-mode", "rw"])
    assert "argument --unix-socket-mode: must be three octal digits such as 660, not 'rw'" in capsys.readouterr().err


def test_a_worker_that_is_replaced_listens_as_well(serve, path):
    served = serve("--workers", "2")
    known = served.workers
    os.kill(min(known), signal.SIGKILL)
    until(lambda: len(served.workers - known) == 1 and len(served.workers) == 2, "another worker is started")
    os.kill(max(known), signal.SIGSTOP)
    assert healthy(path)
    os.kill(max(known), signal.SIGCONT)
