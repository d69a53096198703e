"""The command: what it prints, what it refuses, how it ends."""

import contextlib
import resource
import signal
import socket
import subprocess

import pytest

from ratekeeper import Limiter
from ratekeeper.cli import main
from ratekeeper.service.listening import is_loopback
from tests.servers import PATIENCE, free_port
from tests.service.serving import COMMAND, Served

BODY = b'{"key": "slow", "rule": "fixed-window 5/day"}'
HEAD = b"POST /v1/hit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def exchange(served, request):
    """Send bytes and return the first line of the answer."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        return connection.recv(1000).partition(b"\r\n")[0]


def test_it_prints_the_address_to_open(served):
    assert served.said == f"Listening on http://127.0.0.1:{served.port}/ (press Ctrl-C to stop)\n"


def test_it_serves_a_page(served):
    answer = served.ask("GET", "/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert "examples:\n  ratekeeper serve --store redis://" in capsys.readouterr().out


def test_services_on_one_file_count_together_with_the_command_line_and_the_library(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/limits.db"
    services = [Served(url, "--deadline", "30") for _ in range(2)]
    try:
        body = {"key": "ada", "rule": "fixed-window 5/day"}
        answers = [service.ask("POST", "/v1/hit", json=body).json() for service in (*services, services[0])]
        assert [(answer["remaining"], answer["degraded"]) for answer in answers] == [(4, False), (3, False), (2, False)]
        assert main(["hit", "fixed-window 5/day", "ada", "--store", url, "--deadline", "30"]) == 0
        with Limiter("fixed-window 5/day", url, deadline=30) as limiter:
            assert limiter.hit("ada").remaining == 0
        assert [service.ask("POST", "/v1/hit", json=body).status_code for service in services] == [429, 429]
        (seen,) = services[1].ask("POST", "/v1/inspect", json=body).json()["rules"].values()
        assert seen["name"] == "ratekeeper:fw::5/day:{ada}"
    finally:
        assert [service.stop() for service in services] == [0, 0]
    assert "1 of 5 remaining" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_told_to(number):
    served = Served()
    served.process.send_signal(number)
    assert served.process.wait(PATIENCE) == 0
    assert served.process.stderr.read() == ""
    served.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_under_way_is_finished_first(number):
    served = Served()
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
        connection.sendall(HEAD % len(BODY) + BODY[:10])
        exchange(served, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")  # so the other has arrived as well
        served.process.send_signal(number)
        connection.sendall(BODY[10:])
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
    assert served.process.wait(PATIENCE) == 0
    served.stop()


def test_a_body_that_does_not_come_in_time_is_given_up():
    code = """
import sys
from ratekeeper.cli import main
from ratekeeper.service import rsgi
rsgi.BODY_SECONDS = 0.2
sys.exit(main(["serve", *sys.argv[1:]]))
"""
    served = Served(command=[COMMAND[0], "-c", code])
    for head in (HEAD % len(BODY), HEAD.replace(b"content-length: %d", b"transfer-encoding: chunked") + b"1\r\n{\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE) as connection:
            connection.sendall(head)
            answer = b"".join(iter(lambda: connection.recv(1000), b""))  # until it is closed
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert exchange(served, HEAD % len(BODY) + BODY) == b"HTTP/1.1 200 OK"
    assert served.stop() == 0


def test_a_port_that_is_taken_is_one_line_that_says_what_to_do(served, capsys):
    assert main(["serve", "--port", str(served.port)]) == 2
    assert capsys.readouterr().err == (
        f"ratekeeper serve: port {served.port} is already in use; choose another with --port\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "mysql://localhost"], "store 'mysql://localhost' has an unknown scheme"),
        (["--host", "192.0.2.1", "--token-file", __file__], "cannot listen on 192.0.2.1"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is open to other machines; use --token-file or set RATEKEEPER_TOKEN"),
        (["--host", "::"], "--host :: is open to other machines"),
        (["--token-file", "/nowhere"], "cannot read /nowhere: No such file or directory"),
    ],
)
def test_what_cannot_be_served_is_one_line(options, said, capsys):
    assert main(["serve", "--port", str(free_port()), *options]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"ratekeeper serve: {said}")
    assert printed.count("\n") == 1


def test_an_empty_token_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("RATEKEEPER_TOKEN", " ")
    assert main(["serve", "--port", str(free_port()), "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err == "ratekeeper serve: the token is empty\n"


def test_it_is_open_to_others_with_the_token_of_a_file(tmp_path):
    (tmp_path / "token").write_text("open sesame\n")
    served = Served("memory://", "--host", "0.0.0.0", "--token-file", str(tmp_path / "token"))
    places = f"http://localhost:{served.port}/ and on all addresses of this machine"
    assert served.said == f"Listening on {places} (press Ctrl-C to stop)\n"
    body = {"key": "k", "rule": "1/s"}
    assert served.ask("POST", "/v1/reset", json=body).status_code == 401
    headers = {"authorization": "Bearer open sesame"}
    assert served.ask("POST", "/v1/reset", json=body, headers=headers).status_code == 200
    served.stop()


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_the_host_may_be_a_name_or_an_address_of_any_kind(host):
    served = Served("memory://", "--host", host)
    assert served.ask("POST", "/v1/reset", json={"key": "k", "rule": "1/s"}).status_code == 200
    served.stop()


def test_a_host_that_is_none_is_one_line(capsys):
    assert main(["serve", "--host", "nowhere.invalid", "--token-file", __file__]) == 2
    assert capsys.readouterr().err.startswith("ratekeeper serve: cannot listen on nowhere.invalid, port 8080: ")


def test_without_the_server_it_says_how_to_get_it():
    code = """
import sys
sys.modules["msgspec"] = None  # as if it were not installed
from ratekeeper.cli import main
sys.exit(main(["serve", "--port", sys.argv[1]]))
"""
    command = [COMMAND[0], "-c", code, str(free_port())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert "pip install 'ratekeeper[server]'" in ended.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_only_this_machine_reaches_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "limits.example"])
def test_others_may_reach_any_other_address(host):
    assert not is_loopback(host)


# What is bounded


@pytest.fixture
def room_for_connections():
    """Let this process have as many files as the test needs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_body_has_at_most_64_kib(service):
    spaces = b" " * (64 * 1024 - len(BODY))
    headers = {"content-type": "application/json"}
    assert service.ask("POST", "/v1/peek", content=BODY + spaces, headers=headers).status_code == 200
    assert service.ask("POST", "/v1/peek", content=BODY + spaces + b" ", headers=headers).status_code == 413


def test_a_body_that_does_not_tell_its_length_has_at_most_64_kib(served):
    def body(size):
        yield BODY
        for _ in range(size // 1024):
            yield b" " * 1024

    headers = {"content-type": "application/json"}
    assert served.ask("POST", "/v1/peek", content=body(60 * 1024), headers=headers).status_code == 200
    assert served.ask("POST", "/v1/peek", content=body(64 * 1024), headers=headers).status_code == 413


@pytest.mark.parametrize(
    "headers", [b"".join(b"x-%d: y\r\n" % number for number in range(150)), b"x: " + b"y" * 20_000 + b"\r\n"]
)
def test_headers_are_bounded_in_number_and_size(served, headers):
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n"
    assert exchange(served, request) == b"HTTP/1.1 431 Request Header Fields Too Large"


def test_beyond_1024_connections_the_next_ones_wait_for_a_place(room_for_connections):
    served = Served()
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE))
            for _ in range(1100)
        ]
        for connection in connections:
            connection.sendall(request)
        for connection in connections:  # none is closed here: those that were answered make room
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
    served.stop()
