"""`ratekeeper completion`, in real shells: what is completed when somebody presses Tab."""

import os
import pty
import shutil
import subprocess
import sys
import time

import pytest

from ratekeeper.cli import main
from tests.waiters import PATIENCE

ADVICE = "{0} was not found; on Debian: apt-get install {0}, on macOS: brew install {0}"
STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='ready$ '; bind 'set bell-style none'"),
    "zsh": (["zsh", "-f", "-i"], "PS1='ready$ '; autoload -Uz compinit; compinit -u -D; unsetopt list_beep"),
}
IN_PLACE_OF_THE_COMMAND = """ratekeeper() { echo "called with: $*"; }"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """What is printed for each shell."""
    directory = tmp_path_factory.mktemp("completion")
    (directory / "limits.toml").touch()
    for shell in ("bash", "zsh", "fish"):
        with (directory / shell).open("w") as script:
            command = [sys.executable, "-m", "ratekeeper.cli", "completion", shell]
            subprocess.run(command, stdout=script, check=True, timeout=PATIENCE)
    return directory


class Terminal:
    """A shell on a terminal."""

    def __init__(self, shell, scripts):
        assert shutil.which(shell), ADVICE.format(shell)
        command, setup = STARTS[shell]
        self._here, there = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=there,
            stdout=there,
            stderr=there,
            cwd=scripts,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], "HOME": str(scripts), "TERM": "dumb", "INPUTRC": "/dev/null"},
        )
        os.close(there)
        os.set_blocking(self._here, False)
        self.type(f'{setup}; {IN_PLACE_OF_THE_COMMAND}; eval "$(cat {scripts / shell})"; echo set up\n')
        self.until("set up\r")

    def type(self, text):
        os.write(self._here, text.encode())

    def until(self, expected):
        """Read until this is shown, and return what was shown."""
        shown = ""
        give_up = time.monotonic() + PATIENCE
        while expected not in shown:
            assert time.monotonic() < give_up, f"never shown: {expected!r}, but {shown!r}"
            try:
                shown += os.read(self._here, 65_536).decode()
            except BlockingIOError:
                time.sleep(0.005)
        return shown

    def end(self):
        self._process.kill()
        self._process.wait()
        os.close(self._here)


@pytest.fixture(params=STARTS)
def terminal(request, scripts):
    terminal = Terminal(request.param, scripts)
    yield terminal
    terminal.end()


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        ("simul\t", "simulate"),
        ("serve --unix-socket-m\t660", "serve --unix-socket-mode 660"),
        ("serve --on-error rai\t", "serve --on-error raise"),
        ("check-config lim\t", "check-config limits.toml"),
        ("serve --policies lim\t", "serve --policies limits.toml"),
        ("completion fi\t", "completion fish"),
    ],
)
def test_tab_completes_commands_options_values_and_files(terminal, typed, called):
    terminal.type(f"ratekeeper {typed}")
    terminal.until(called.split()[-1])  # before the line is accepted
    terminal.type("\n")
    terminal.until(f"called with: {called}")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("simul", "simulate"),
        ("serve --unix-socket-m", "--unix-socket-mode"),
        ("serve --on-error rai", "raise"),
        ("check-config lim", "limits.toml"),
        ("completion fi", "fish"),
    ],
)
def test_fish_offers_them(scripts, typed, offered):
    assert shutil.which("fish"), ADVICE.format("fish")
    code = f"source {scripts / 'fish'}; complete -C 'ratekeeper {typed}'"
    environment = {"PATH": os.environ["PATH"], "HOME": str(scripts), "TERM": "dumb"}
    said = subprocess.run(
        ["fish", "--no-config", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=scripts,
        env=environment,
        timeout=PATIENCE,
    )
    assert [line.split("\t")[0] for line in said.stdout.splitlines()] == [offered]


def test_an_unknown_shell_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "csh"])
    assert "argument shell: invalid choice: 'csh'" in capsys.readouterr().err


def test_without_what_writes_it_it_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)  # as if it were not installed
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == (
        "ratekeeper completion: shtab is missing: pip install 'ratekeeper[completion]'\n"
    )
