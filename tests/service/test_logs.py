"""The log of the service: text or JSON, denials by sample, every request if that is wanted, and no keys."""

import fcntl
import json
import logging
import os
import re

import pytest

from ratekeeper.service import denial_log
from ratekeeper.service.denial_log import DenialLog
from ratekeeper.service.log_lines import JsonLine, StderrLines, TextLine, logging_as
from tests import servers
from tests.service.serving import InProcess, Served

RULE = "fixed-window 1/day"


def record(message, *arguments, **more):
    made = logging.LogRecord("ratekeeper", logging.WARNING, "", 0, message, arguments, None)
    made.__dict__.update(more)
    return made


def lines_of(served):
    """Stop the service; return the lines of its log."""
    served.stop()
    return [json.loads(line) for line in served.errors.splitlines()]


def hit(served, key, times=1, path="/v1/hit"):
    for _ in range(times):
        served.ask("POST", path, json={"key": key, "rule": RULE})


def test_in_json_each_line_has_its_time_and_level_and_denials_are_sampled_without_their_keys():
    served = Served("memory://", "--log-format", "json")
    hit(served, "secret-key", 30)
    lines = [line for line in lines_of(served) if line["logger"] == "ratekeeper.denials"]
    assert 1 <= len(lines) < 10  # one in ten seconds, however slow the machine
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", lines[0]["time"])
    assert (lines[0]["level"], lines[0]["message"]) == ("info", "denied")
    assert {name: lines[0][name] for name in ("policy", "rule", "cost", "denied_since_last_line")} == {
        "policy": "",
        "rule": "",
        "cost": 1,
        "denied_since_last_line": 0,
    }
    assert re.fullmatch(r"[0-9a-f]{16}", lines[0]["key"])
    assert "secret" not in served.errors


def test_what_goes_wrong_is_json_too():
    served = Served(f"redis://127.0.0.1:{servers.free_port()}", "--log-format", "json")
    hit(served, "ada")
    warnings = [line for line in lines_of(served) if line["level"] == "warning"]
    assert any("is away" in line["message"] for line in warnings)
    assert {line["logger"] for line in warnings} == {"ratekeeper"}


def test_as_text_there_are_warnings_only():
    served = Served("memory://")
    hit(served, "ada", 5)
    assert (served.stop(), served.errors) == (0, "")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_access_log_has_each_request_and_nothing_of_what_it_is_about(log_format):
    served = Served("memory://", "--access-log", "--log-format", log_format, RATEKEEPER_TOKEN="secret-token")
    try:
        hit(served, "secret-key", 2, "/v1/hit?always_200=0")
        served.ask("GET", "/no/such%1b%5b31m")
    finally:
        served.stop()
    lines = [line for line in served.errors.splitlines() if "/healthz" not in line and "denials" not in line]
    assert "secret" not in served.errors
    assert "\x1b" not in served.errors
    if log_format == "json":
        read = [json.loads(line) for line in lines if '"ratekeeper.access"' in line]
        assert [(each["method"], each["path"], each["status"]) for each in read[:2]] == [
            ("POST", "/v1/hit", 200),
            ("POST", "/v1/hit", 429),
        ]
        assert read[0]["client"] == "127.0.0.1"
        assert read[0]["bytes"] > 100
        assert read[0]["ms"] > 0
    else:
        assert [re.sub(r"\d+ bytes [\d.]+ ms", "...", line) for line in lines[:2]] == [
            "127.0.0.1 POST /v1/hit 200 ...",
            "127.0.0.1 POST /v1/hit 429 ...",
        ]
    assert len(lines) == 3


def test_several_workers_log_whole_lines():
    served = Served(None, "--workers", "2", "--deadline", "30", "--access-log", "--log-format", "json")
    hit(served, "ada", 20)
    accesses = [line for line in lines_of(served) if line["logger"] == "ratekeeper.access"]
    assert len([line for line in accesses if line["path"] == "/v1/hit"]) == 20


def test_the_first_denial_by_each_rule_is_logged_and_then_one_in_ten_seconds(caplog):
    app = InProcess(playground=False)
    app.app.service.limiter("1/day")  # a limiter whose demands can be seen
    log = DenialLog("api")
    decision = type("Denied", (), {"allowed": False, "rule": "user", "retry_after": 2.5})
    demand = type("Demand", (), {"binding": type("Binding", (), {"name": "user"}), "key": "ada", "cost": 3})
    with caplog.at_level(logging.INFO, "ratekeeper.denials"):
        for now_ns in (1, 2, 3, denial_log.PAUSE_NS, denial_log.PAUSE_NS + 1, denial_log.PAUSE_NS + 2):
            log.decided("hit", (demand,), decision, now_ns, now_ns)
        other = type("Denied", (), {"allowed": False, "rule": "", "retry_after": float("inf")})
        log.decided("hit", (), other, 5, 5)
    fields = [each.fields for each in caplog.records]
    assert [(each["rule"], each["denied_since_last_line"]) for each in fields] == [("user", 0), ("user", 3), ("", 0)]
    assert (fields[0]["cost"], fields[0]["retry_after"]) == (3, 2.5)
    assert (fields[2]["key"], fields[2]["retry_after"]) == (None, None)


def test_rules_without_end_are_not_kept_without_end(monkeypatch):
    monkeypatch.setattr(denial_log, "MAX_KNOWN", 5)
    log = DenialLog("api")
    for number in range(100):
        decision = type("Denied", (), {"allowed": False, "rule": f"rule {number}", "retry_after": 1.0})
        log.decided("hit", (), decision, 1, 1)
    assert len(log._next_ns) <= 5  # noqa: SLF001 - what it keeps must be bounded


def test_a_reader_that_has_stopped_keeps_nobody_waiting_and_is_told_later_what_was_dropped():
    read, write = os.pipe()
    handler = StderrLines(TextLine(), write)
    for _ in range(100_000):
        handler.emit(record("x" * 1_000))
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_NONBLOCK)
    while True:
        try:
            os.read(read, 1_000_000)
        except BlockingIOError:
            break
    handler.emit(record("it goes on"))
    said = os.read(read, 1_000_000).decode().splitlines()
    assert re.fullmatch(r"\d{5} lines of the log were dropped, because nobody read it", said[0])
    assert said[1:] == ["it goes on"]
    os.close(read)
    handler.emit(record("nobody can read this"))
    os.close(write)


def test_a_line_is_one_line_whatever_it_says():
    assert TextLine().format(record("a\nb\x1b[31m %s", "c\r")) == r"a\nb\x1b[31m c\r"
    line = JsonLine().format(record("a\nb", fields={"key": object}))
    assert "\n" not in line
    assert json.loads(line)["message"] == "a\nb"


def test_a_failure_has_its_traceback_in_the_same_line():
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        made = record("a request failed", exc_info=(type(error), error, error.__traceback__))
    line = json.loads(JsonLine().format(made))
    assert line["exception"].endswith("RuntimeError: broken")
    assert TextLine().format(made).endswith("RuntimeError: broken")


def test_what_was_set_up_before_is_there_again_afterwards():
    root = logging.getLogger()
    before = root.handlers[:]
    with logging_as("json", access_log=True):
        assert root.handlers != before
    assert root.handlers == before
    assert logging.getLogger("ratekeeper").level == logging.NOTSET
