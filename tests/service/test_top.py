"""`ratekeeper top`: top talkers in a terminal, or in a file."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import httpx
import pytest

from ratekeeper.cli import main
from ratekeeper.top_command import cut, table, width_of
from tests.service.serving import Served
from tests.waiters import PATIENCE

COMMAND = [sys.executable, "-m", "ratekeeper.cli", "top"]
RULE = "fixed-window 2/day"
TOP = {"by": "denied", "seconds": 97.4, "cost": 50, "missed": 0, "hashed": False, "keys": []}


@pytest.fixture
def served():
    """The service, which shows keys."""
    served = Served("memory://", "--show-keys")
    yield served
    served.stop()


def hit(served, key, times):
    for _ in range(times):
        served.ask("POST", "/v1/hit", json={"key": key, "rule": RULE})


def test_it_prints_the_table_once_where_there_is_no_terminal(served, capsys):
    hit(served, "ada", 5)
    hit(served, ["bob", 7], 3)
    assert main(["top", "--url", served.url]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"denied in the last \d+ s: 4 in all", title)
    assert lines == [
        "COST  SHARE  POLICY  RULE                KEY",
        "   3  75.0%  -       fixed-window 2/day  ada",
        '   1  25.0%  -       fixed-window 2/day  ["bob", 7]',
    ]
    assert main(["top", "--url", served.url, "--by", "admitted", "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_without_any_it_says_so(served, capsys):
    assert main(["top", "--url", served.url]) == 0
    assert re.fullmatch(r"nothing was denied in the last \d+ s\n", capsys.readouterr().out)


def test_the_table_says_how_exact_it_is_and_what_keys_are():
    talker = {"policy": "api", "rule": "user", "key": "0123456789abcdef", "cost": 40}
    title, _, line = table(TOP | {"missed": 3, "hashed": True, "keys": [talker]})
    assert title == (
        "denied in the last 97 s: 50 in all; each may be up to 3 more; "
        "keys are hashes, unless the service is started with --show-keys"
    )
    assert line == "  40  80.0%  api     user  0123456789abcdef"


def test_a_key_does_nothing_to_the_terminal():
    talker = {"policy": "", "rule": "1/s", "key": "\x1b[31m\r\n\u202eada", "cost": 50}
    assert table(TOP | {"keys": [talker]})[-1].endswith(r"  \x1b[31m\r\n\u202eada")


def test_lines_are_cut_by_the_columns_that_they_take():
    assert (width_of("ada"), width_of("限流"), width_of("e\u0301")) == (3, 4, 1)
    assert (cut("限流器", 5), cut("ada", 5)) == ("限流", "ada")


def test_the_token_is_sent_and_its_want_is_told(tmp_path, capsys, monkeypatch):
    served = Served("memory://", RATEKEEPER_TOKEN="secret")
    try:
        assert main(["top", "--url", served.url]) == 2
        assert "requires the header Authorization: Bearer TOKEN; see --token-file" in capsys.readouterr().err
        monkeypatch.setenv("RATEKEEPER_TOKEN", "secret")
        assert main(["top", "--url", served.url]) == 0
        (tmp_path / "token").write_text("secret\n")
        monkeypatch.delenv("RATEKEEPER_TOKEN")
        assert main(["top", "--url", served.url, "--token-file", str(tmp_path / "token")]) == 0
    finally:
        served.stop()


def test_a_unix_socket_can_be_asked(tmp_path, capsys, monkeypatch):
    path = tmp_path / "limits.sock"
    monkeypatch.setenv("RATEKEEPER_TOKEN", "secret")
    client = httpx.Client(base_url="http://localhost", transport=httpx.HTTPTransport(uds=str(path)))
    served = Served(None, "--unix-socket", str(path), client=lambda _: client)
    try:
        assert main(["top", "--url", served.said.split()[2]]) == 0
    finally:
        served.stop()
    assert "nothing was denied" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "ftp://localhost",
            "--url must be http://HOST:PORT, https://HOST:PORT or http+unix:FILE, not 'ftp://localhost'",
        ),
        ("http://localhost:x", "--url 'http://localhost:x' is invalid: Port could not be cast"),
        ("http+unix:/no/socket", "cannot reach http+unix:/no/socket: No such file or directory"),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(url, said, capsys):
    assert main(["top", "--url", url]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ratekeeper top: {said}")
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_a_server_that_is_something_else_is_told(capsys):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        url = re.search(r"http://[\d.:]+", process.stdout.readline())[0]
        assert main(["top", "--url", url]) == 2
        process.terminate()
    assert capsys.readouterr().err == f"ratekeeper top: {url} answered 404, and not as ratekeeper does\n"


class Terminal:
    """A terminal in which the command runs."""

    def __init__(self, *arguments):
        self._end, inner = pty.openpty()
        environment = os.environ | {"COLUMNS": "100", "LINES": "24"}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True
        )
        os.close(inner)
        self.shown = ""

    def until(self, text):
        """Read what is shown until a text has come."""
        give_up = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert time.monotonic() < give_up, f"never shown: {text}; but {self.shown!r}"
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._end, 10_000).decode()
                except OSError:  # the command has ended
                    assert text in self.shown, self.shown

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.fixture
def terminal():
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            started = Terminal(*arguments)
            stack.callback(started.close)
            return started

        yield start


def test_it_is_live_in_a_terminal_and_ends_cleanly_with_ctrl_c(served, terminal):
    hit(served, "ada", 5)
    shown = terminal("--url", served.url)
    shown.until("3  100.0%  -")
    hit(served, "bob", 3)
    shown.until("\x1b[3F\x1b[J")  # drawn in place of the three lines before
    shown.until("1  25.0%  -")
    shown.process.send_signal(signal.SIGINT)
    assert shown.process.wait(PATIENCE) == 0
    assert "Traceback" not in shown.shown


def test_a_service_that_goes_away_meanwhile_is_asked_again(terminal):
    served = Served()
    shown = terminal("--url", served.url)
    shown.until("nothing was denied")
    served.stop()
    shown.until("trying again")
    shown.process.send_signal(signal.SIGINT)
    assert shown.process.wait(PATIENCE) == 0
