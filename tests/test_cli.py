import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ratekeeper.algorithms import all_of
from ratekeeper.cli import main
from ratekeeper.simulate.command import wants_color
from ratekeeper.simulate.progress import Progress
from tests.waiters import PATIENCE

FULL = Path("/dev/full")

CLI = [sys.executable, "-m", "ratekeeper.cli"]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def output(capsys, *arguments):
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def complaint(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.rstrip("\n")


# The command line itself


@pytest.mark.parametrize(
    ("arguments", "example"),
    [
        (["--help"], "ratekeeper simulate --traffic flood"),
        (["simulate", "--help"], "ratekeeper simulate --file times.txt"),
        (["hit", "--help"], "ratekeeper hit '100/minute' user:42 --store"),
        (["peek", "--help"], "ratekeeper peek '100/minute' user:42 --store"),
        (["wait", "--help"], "ratekeeper wait '100/minute' user:42 --store"),
        (["charge", "--help"], "ratekeeper charge '100/minute' user:42 --store"),
        (["refund", "--help"], "ratekeeper refund '100/minute' user:42 --store"),
        (["inspect", "--help"], "ratekeeper inspect --policies limits.toml --policy api user=42"),
        (["reset", "--help"], "ratekeeper reset '100/minute' user:42 --store"),
    ],
)
def test_help_has_an_example(capsys, arguments, example):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert example in capsys.readouterr().out


def test_the_version_is_shown(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("ratekeeper")


def test_a_command_is_needed(capsys):
    assert complaint(capsys) == "ratekeeper: a command is required; run ratekeeper --help for a list"


def test_an_unknown_command_names_what_there_is(capsys):
    assert complaint(capsys, "stimulate") == "ratekeeper: unknown command 'stimulate'; did you mean simulate?"
    assert complaint(capsys, "juggle") == "ratekeeper: unknown command 'juggle'; see --help"


def test_an_option_is_not_abbreviated(capsys):
    assert complaint(capsys, "simulate", "--dur", "3") == (
        "ratekeeper simulate: unknown option --dur; did you mean --duration?"
    )


def test_it_runs_as_a_program():
    result = subprocess.run([*CLI, "simulate"], capture_output=True, check=False, encoding="utf-8")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "fixed-window 10/10s                    40       40      0 20 of 10 +20 -0 50 %\n" in result.stdout


def test_python_runs_the_package():
    asked = subprocess.run([sys.executable, "-m", "ratekeeper", "--help"], capture_output=True, check=False, text=True)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("usage: ratekeeper [-h]")


def test_an_interrupt_ends_it_quietly(tmp_path):
    times = tmp_path / "times"
    os.mkfifo(times)
    process = subprocess.Popen([*CLI, "simulate", "--file", times], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with times.open("wb"):  # opens when the program has opened it too, and now waits for a line
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
    assert process.returncode == 130


def test_a_closed_pipe_ends_it_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen([*CLI, "simulate"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert process.communicate(timeout=PATIENCE)[1] == b""
    assert process.returncode == 141


def test_a_closed_pipe_is_quiet_in_this_process_too(monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["simulate"]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_told(monkeypatch, capsys):
    with FULL.open("w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["simulate"]) == 2
    assert capsys.readouterr().err == "ratekeeper: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(("limit", "status"), [("1/s", 0), ("never", 2)])
def test_without_any_output_the_status_tells(limit, status):
    closed = f"{shlex.join([*CLI, 'hit', limit, 'ada', '--store', 'memory://'])} >&- 2>&-"
    assert subprocess.run(["sh", "-c", closed], check=False).returncode == status


# ratekeeper simulate


def test_without_arguments_it_shows_the_double_burst_and_says_where_to_look(capsys):
    text = output(capsys, "simulate")
    assert text.startswith("boundary traffic, 40 requests in 40 s: as many requests as the limit just before\n")
    assert "Compare both sides of a boundary: the fixed window admits both bursts," in text
    assert "fixed-window                    █┊█         ┊         █┊█\n" in text


def test_where_to_look_is_only_said_of_what_is_shown(capsys):
    assert "Compare both sides" not in output(capsys, "simulate", "100/minute")
    assert "Compare both sides" not in output(capsys, "simulate", "--traffic", "flood")
    assert "Compare both sides" not in output(capsys, "simulate", "--rate", "2")


def test_several_rules_may_stand_in_one_argument(capsys):
    text = output(capsys, "simulate", "10/s; fixed-window 5/s", "10/s burst 20")
    assert [row.split(" ")[0] for row in text.split("rule  ")[1].split("\n")[1:4]] == [
        "sliding-window-counter",
        "fixed-window",
        "token-bucket",
    ]


def test_a_rule_that_is_given_twice_is_shown_once(capsys):
    result = json.loads(output(capsys, "simulate", "10/s", "10 per second", "--json"))
    assert [rule["name"] for rule in result["rules"]] == ["sliding-window-counter 10/s"]


def test_json_is_for_programs(capsys):
    result = json.loads(output(capsys, "simulate", "--json"))
    assert result["schema"] == 1
    assert len(result["rules"]) == len(all_of(10, 10_000_000))
    seen = {rule["name"]: (rule["peak"]["units"], rule["admitted"]["requests"]) for rule in result["rules"]}
    assert seen["fixed-window 10/10s"] == (20, 40)
    assert seen["sliding-window-log 10/10s"] == (10, 20)
    assert seen["sliding-window-counter 10/10s"] == (11, 22)


def test_rate_duration_and_cost_make_the_traffic(capsys):
    arguments = ["--traffic", "steady", "--rate", "30/minute", "--duration", "2.5", "--cost", "3"]
    result = json.loads(output(capsys, "simulate", *arguments, "--json"))
    assert result["requests"] == {"at_us": [0, 2_000_000], "cost": [3, 3]}
    assert result["traffic"]["end_us"] == 2_500_000


def test_the_seed_decides_the_traffic(capsys):
    first, again, other = (
        output(capsys, "simulate", "--traffic", "poisson", "--seed", seed, "--json") for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


def test_a_file_is_traffic_too(capsys, tmp_path):
    times = tmp_path / "times.txt"
    times.write_text("0.5\n1 3\n")
    result = json.loads(output(capsys, "simulate", "--file", str(times), "--cost", "2", "--json"))
    assert result["requests"] == {"at_us": [500_000, 1_000_000], "cost": [2, 3]}


def test_the_width_can_be_given(capsys):
    assert max(map(len, output(capsys, "simulate", "--width", "60").split("\n"))) <= 60


@pytest.mark.parametrize("columns", ["10", "60"])
def test_it_is_never_narrower_than_60_columns(capsys, monkeypatch, columns):
    narrow = output(capsys, "simulate", "--width", "60")
    monkeypatch.setenv("COLUMNS", columns)
    assert output(capsys, "simulate") == narrow


def test_an_output_without_block_characters_gets_ascii(tmp_path):
    Path(tmp_path, "zeiten-ü.txt").write_text("1\n")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [*CLI, "simulate", "--file", "zeiten-ü.txt"]  # the title shortens long paths
    result = subprocess.run(command, capture_output=True, check=True, env=environment, cwd=tmp_path)
    assert result.stdout.isascii()
    assert b"\\xfc.txt" in result.stdout


# Colors


def shown_on_a_terminal(*arguments, **variables):
    master, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **variables}
    process = subprocess.Popen([*CLI, "simulate", *arguments], stdout=terminal, env=environment)
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(master, 65_536):
            shown += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(master)
    assert process.wait() == 0
    return shown.decode()


def test_a_terminal_gets_colors():
    assert "\x1b[94m" in shown_on_a_terminal()


def test_no_color_on_the_command_line_turns_them_off():
    assert "\x1b" not in shown_on_a_terminal("--no-color")


def test_no_color_in_the_environment_turns_them_off():
    assert "\x1b" not in shown_on_a_terminal(NO_COLOR="1")


def test_what_is_no_terminal_gets_none(capsys):
    assert "\x1b" not in output(capsys, "simulate")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_the_environment_has_a_say_in_colors(environment, wanted):
    assert wants_color(environment) is wanted


# Pictures


def test_a_picture_is_drawn_beside_the_text(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "\nPlot saved to 'out.svg'.\n" in output(capsys, "simulate", "10/s", "--plot", "out.svg")
    assert Path("out.svg").read_bytes().startswith(b"<?xml")


def test_a_picture_does_not_spoil_json(capsys, tmp_path):
    path = tmp_path / "out.png"
    json.loads(output(capsys, "simulate", "10/s", "--json", "--plot", str(path)))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_told(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    message = complaint(capsys, "simulate", "--plot", "nowhere/out.svg")
    assert message == "ratekeeper simulate: argument --plot: cannot write 'nowhere/out.svg': No such file or directory"


def test_without_matplotlib_it_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    message = complaint(capsys, "simulate", "--plot", str(tmp_path / "out.svg"))
    assert message == "ratekeeper simulate: argument --plot: drawing needs matplotlib: pip install 'ratekeeper[plot]'"


# Bad input


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--traffic", "tsunami"], "argument --traffic: invalid choice: 'tsunami' (choose from"),
        (["--rate", "0"], "argument --rate: must be above 0, such as '3' (per second) or '200/minute', not '0'"),
        (["--rate", "fast"], "argument --rate: must be above 0, such as '3' (per second) or '200/minute', not 'fast'"),
        (["--rate=-1"], "argument --rate: must be above 0"),
        (["--rate", "nan"], "argument --rate: must be above 0"),
        (["--rate", "10/fortnight"], "argument --rate: must be above 0"),
        (["--duration", "0"], "argument --duration: must be above 0 and at most 407 days"),
        (["--duration", "long"], "argument --duration: must be above 0 and at most 407 days"),
        (["--duration", "9999d"], "argument --duration: must be above 0 and at most 407 days"),
        (["--seed", "-1"], "argument --seed: "),
        (["--seed", "x"], "argument --seed: must be a whole number from 0 to"),
        (["--cost", "0"], "argument --cost: must be a whole number from 1 to 1000000000000, not '0'"),
        (["--cost", "1.5"], "argument --cost: must be a whole number from 1 to"),
        (["--width", "59"], "argument --width: must be a whole number from 60 to 1000, not '59'"),
        (["--plot", "out.gif"], "argument --plot: must be a file name that ends in .svg or .png, not 'out.gif'"),
        (["--file", "nowhere"], "argument --file: cannot read file 'nowhere': No such file or directory"),
        (["--file", "a", "--traffic", "flood"], "argument --traffic: not allowed with argument --file"),
        (["--file", "a", "--rate", "1"], "argument --rate: not allowed with argument --file"),
        (["--file", "a", "--duration", "1"], "argument --duration: not allowed with argument --file"),
        (["--file", "a", "--seed", "0"], "argument --seed: not allowed with argument --file"),
        (["--rate", "1000000"], "argument --traffic: boundary traffic has more than 2,000,000 requests"),
        (["--duration", "1"], "argument --traffic: boundary traffic has no request within 1 s"),
        (["10/parsec"], "argument RULE: rule '10/parsec': unknown unit 'parsec'; use us, ms, s, minute"),
        (["hourglass 10/s"], "argument RULE: rule 'hourglass 10/s': unknown algorithm 'hourglass'; use fixed-window,"),
        (["1/year burst 10"], "argument RULE: rule 'token-bucket 1/365d burst 10' takes longer than 407 days"),
        (["a\nb"], "argument RULE: cannot read rule 'a b' in 'a\\nb'"),
        ([""], "argument RULE: cannot read rule ''"),
    ],
)
def test_bad_input_is_told_in_one_line_that_names_the_argument(capsys, arguments, expected):
    assert complaint(capsys, "simulate", *arguments).startswith(f"ratekeeper simulate: {expected}")


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_after_a_second_and_wiped_at_the_end():
    stream = Terminal()
    with Progress(
        200, stream, iter([0, 500_000_000, 1_500_000_000, 1_600_000_000, 2_000_000_000]).__next__
    ) as progress:
        progress(20)
        assert stream.getvalue() == ""
        progress(20)
        assert stream.getvalue() == "\rsimulating: 20 %"
        progress(1)
        progress(150)
    assert stream.getvalue() == "\rsimulating: 20 %\rsimulating: 95 %\r                \r"


def test_progress_is_for_terminals_only():
    stream = io.StringIO()
    with Progress(200, stream, iter([0]).__next__) as progress:
        progress(200)
    assert stream.getvalue() == ""
