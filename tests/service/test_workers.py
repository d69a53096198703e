"""`--workers N`: several processes that serve one port, and their supervisor."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from ratekeeper.cli import main
from tests.servers import free_port
from tests.service.keep_alive import KeepAlive
from tests.service.serving import PATIENCE, Served, patched
from tests.waiters import until

RULE = "fixed-window 1000000/day"
BODY = b'{"key": "ada", "rule": "fixed-window 1000000/day"}'


@pytest.fixture
def serve(tmp_path):
    """Start services, which end with the test and keep their files in its directory."""
    with contextlib.ExitStack() as stack:

        def start(*options, **more):
            served = Served(*options, TMPDIR=str(tmp_path), **more)
            stack.callback(served.stop)
            return served

        yield start


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_all_workers_answer_and_count_together(serve, tmp_path):
    served = serve(None, "--deadline", "30", "--workers", "2")
    assert served.said == f"Listening on http://127.0.0.1:{served.port}/ (press Ctrl-C to stop)\n"
    first, second = served.workers
    body = {"key": "ada", "rule": "fixed-window 40/day"}

    def answer(silent):
        """Hit while one of them cannot answer: the kernel gives some connections to the other."""
        os.kill(silent, signal.SIGSTOP)
        try:
            for _ in range(1_000):
                with contextlib.suppress(httpx.TimeoutException):
                    return httpx.post(f"{served.url}v1/hit", json=body, timeout=0.5).json()
            raise AssertionError("the other worker never answered")
        finally:
            os.kill(silent, signal.SIGCONT)

    remaining = [answer(first)["remaining"], answer(second)["remaining"], answer(first)["remaining"]]
    assert remaining == sorted(set(remaining), reverse=True)
    (directory,) = tmp_path.iterdir()
    assert directory.stat().st_mode & 0o077 == 0
    assert (directory / "limits.db").exists()
    assert served.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_workers_that_are_killed_under_load_are_replaced_and_nothing_is_charged_wrongly(serve):
    served = serve(None, "--deadline", "30", "--workers", "2")
    with KeepAlive(served.port, BODY, clients=4) as clients:
        for _ in range(2):
            known = served.workers
            before = clients.answered
            os.kill(min(known), signal.SIGKILL)
            until(lambda: len(served.workers - known) == 1, "another worker is started")  # noqa: B023
            until(lambda: clients.answered > before + 200, "the clients are answered")  # noqa: B023
    (left,) = served.ask("POST", "/v1/inspect", json={"key": "ada", "rule": RULE}).json()["rules"].values()
    charged = left["state"]["count"]
    assert (set(clients.answers), clients.degraded) == ({200}, {200: 0})
    assert clients.answered <= charged <= clients.answered + len(clients.cut)
    served.stop()
    replaced = re.findall(r"worker \d of 2 \(process \d+\) was killed by SIGKILL; starting another\n", served.errors)
    assert "".join(replaced) == served.errors
    assert len(replaced) == 2


def test_workers_do_not_count_in_memory_each_for_itself(capsys):
    assert main(["serve", "--workers", "2", "--store", "memory://", "--port", str(free_port())]) == 2
    assert capsys.readouterr().err == (
        "ratekeeper serve: memory:// counts in one process; leave --store out, so that the workers count in a "
        "temporary file, or choose another store\n"
    )


@pytest.mark.parametrize("number", ["0", "257", "two"])
def test_a_number_of_workers_that_cannot_be(number, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--workers", number])
    assert ended.value.code == 2
    assert f"argument --workers: must be a whole number from 1 to 256, not '{number}'" in capsys.readouterr().err


def test_when_the_supervisor_is_killed_its_workers_end(serve, tmp_path):
    served = serve(None, "--workers", "2")
    workers = served.workers
    served.process.kill()
    until(lambda: not any(map(is_running, workers)), "the workers end")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_told_to_stop_is_replaced(serve):
    served = serve(None, "--workers", "2")
    known = served.workers
    os.kill(min(known), signal.SIGTERM)
    until(lambda: len(served.workers - known) == 1, "another worker is started")
    assert served.ask("GET", "/healthz").status_code == 200


def test_a_worker_that_keeps_dying_is_not_started_again_at_once(serve, tmp_path):
    code = """
import os, pathlib
from ratekeeper.service import running, supervisor
supervisor.PAUSE = 0.3
class Dying(running.Serving):
    def __init__(self, *arguments):
        if pathlib.Path(os.environ["TMPDIR"], "die").exists():
            os._exit(7)
        super().__init__(*arguments)
running.Serving = Dying
"""
    served = serve(None, "--workers", "2", command=patched(code))
    (tmp_path / "die").touch()
    begun = time.monotonic()
    os.kill(max(served.workers), signal.SIGKILL)
    said = [served.process.stderr.readline() for _ in range(5)]
    assert time.monotonic() - begun >= 3 * 0.3
    assert re.fullmatch(r"worker \d of 2 \(process \d+\) was killed by SIGKILL; starting another\n", said[0])
    assert re.fullmatch(r"worker \d of 2 \(process \d+\) ended with status 7; starting another\n", said[4])
    assert served.ask("GET", "/healthz").status_code == 200
    (tmp_path / "die").unlink()
    until(lambda: len(served.workers) == 2, "it is replaced in the end")


def test_if_a_worker_cannot_start_the_service_does_not(tmp_path):
    code = """
from ratekeeper.service import running
class Failing(running.Serving):
    def __init__(self, app, *more):
        if app.service.worker.index == 1:
            raise OSError("no descriptor left")
        super().__init__(app, *more)
running.Serving = Failing
"""
    command = [*patched(code), "--workers", "2", "--port", str(free_port())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no descriptor left" in ended.stderr


def test_a_signal_to_reload_reaches_all_workers_and_stops_none(serve):
    served = serve(
        None,
        "--workers",
        "2",
        command=patched("""
import os, sys
from ratekeeper.service.app import App
async def reload(self):
    print(f"reloaded {os.getpid()}", file=sys.stderr, flush=True)
App.reload = reload
"""),
    )
    workers = served.workers
    served.process.send_signal(signal.SIGHUP)
    said = {served.process.stderr.readline() for _ in workers}
    assert said == {f"reloaded {pid}\n" for pid in workers}
    assert served.workers == workers
