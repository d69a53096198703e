"""`ratekeeper hit`, `peek` and `reset` on a real server, and their exit status."""

import json
import os
import subprocess
import sys

import pytest
import redis

from ratekeeper import Limiter, commands
from ratekeeper.cli import main
from tests import servers


@pytest.fixture(scope="module")
def url():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server.url
    server.stop()


def call(capsys, *arguments):
    """Return the exit status, the output and the error output."""
    status = main(arguments)
    said = capsys.readouterr()
    return status, said.out.strip(), said.err.strip()


def test_a_hit_is_counted_until_it_is_denied_and_reset(capsys, url):
    hit = ("hit", "fixed-window 2/day", "ada", "--store", url)
    rule = "under 'fixed-window 2/day'"
    assert call(capsys, *hit) == (0, f"allowed: proceed; 1 of 2 remaining {rule}", "")
    assert call(capsys, *hit)[0] == 0
    status, out, err = call(capsys, *hit)
    assert (status, err) == (1, "")
    assert out.startswith("denied: try again in ")
    assert out.endswith(f" s; 0 of 2 remaining {rule}")
    assert call(capsys, "reset", *hit[1:]) == (0, "ada: reset", "")
    assert call(capsys, *hit)[0] == 0


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_what_the_output_cannot_show_is_shown_as_codes(url, encoding):
    key, name = "\udcff\n\x1b[1m\u00e9", "\u00e9"
    where = ["--store", url, "--name", name]
    shown = {"ascii": "\\xe9", "utf-8:strict": "\u00e9"}[encoding]
    for arguments, out in (
        (["hit", "1/day", key, *where], f"allowed: proceed; 0 of 1 remaining under '{shown}'\n"),
        (["reset", "1/day", key, *where], f"\\udcff\\n\\x1b[1m{shown}: reset\n"),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "ratekeeper.cli", *arguments],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
        )
        assert (ended.returncode, ended.stdout.decode(), ended.stderr) == (0, out, b"")


def test_a_peek_changes_nothing(capsys, url):
    peek = ("peek", "fixed-window 2/day", "bob", "--store", url)
    assert [call(capsys, *peek)[:2] for _ in range(2)] == [
        (0, "allowed: proceed; 2 of 2 remaining under 'fixed-window 2/day'"),
        (0, "allowed: proceed; 2 of 2 remaining under 'fixed-window 2/day'"),
    ]


def test_json_is_the_whole_decision(capsys, url):
    status, out, _ = call(capsys, "hit", "fixed-window 2/day; 1/hour", "eve", "--cost", "2", "--store", url, "--json")
    decision = json.loads(out)
    assert status == 1
    assert (decision["allowed"], decision["rule"], decision["retry_after"]) == (
        False,
        "sliding-window-counter 1/hour",
        None,
    )
    assert {name: layer["remaining"] for name, layer in decision["layers"].items()} == {
        "fixed-window 2/day": 2,
        "sliding-window-counter 1/hour": 1,
    }
    assert call(capsys, "reset", "1/hour", "eve", "--store", url, "--json") == (0, '{"ok": true, "found": false}', "")


def test_a_reset_tells_a_key_that_was_never_used(capsys, url):
    where = ("--store", url, "--name", "mail", "--prefix", "app")
    told = "nobody: nothing to reset; no usage is stored for this key under rule 'mail' and prefix 'app'"
    assert call(capsys, "reset", "1/day", "nobody", *where) == (0, told, "")
    call(capsys, "hit", "1/day", "nobody", *where)
    assert call(capsys, "reset", "1/day", "nobody", *where, "--json") == (0, '{"ok": true, "found": true}', "")
    assert call(capsys, "reset", "1/day", "nobody", *where) == (0, told, "")


@pytest.mark.parametrize("value", [{"set": "what is this?"}, {"hset": {"a": 1}}], ids=["text", "hash"])
def test_a_reset_mends_a_damaged_key(capsys, url, value):
    with Limiter("fixed-window 1/week", url, on_error="raise") as limiter, redis.Redis.from_url(url) as client:
        (seen,) = limiter.inspect("damaged").values()
        client.delete(seen.name)
        client.set(seen.name, value["set"]) if "set" in value else client.hset(seen.name, mapping=value["hset"])
        assert call(capsys, "hit", "fixed-window 1/week", "damaged", "--store", url)[0] == 2
        reset = ("reset", "fixed-window 1/week", "damaged", "--store", url, "--json")
        assert call(capsys, *reset) == (0, '{"ok": true, "found": true}', "")
        assert call(capsys, "hit", "fixed-window 1/week", "damaged", "--store", url)[0] == 0


def test_a_name_and_a_prefix_reach_what_an_application_stores(capsys, url):
    with Limiter({"mail": "fixed-window 2/day"}, url, prefix="app", on_error="raise") as limiter:
        limiter.hit("ada", 2)
    where = ("--store", url, "--name", "mail", "--prefix", "app")
    assert call(capsys, "peek", "fixed-window 2/day", "ada", *where)[0] == 1


@pytest.mark.parametrize(
    ("rule", "fields", "text"),
    [
        ("fixed_window", ["--limit", "9"], "fixed-window 9/minute"),
        ("sliding-window-log", ["--limit", "9", "--window", "5m"], "sliding-window-log 9/5m"),
        ("sliding_window_counter", ["--limit", "9", "--window", "0.5"], "sliding-window-counter 9/500ms"),
        ("token_bucket", ["--limit", "9"], "token-bucket 9/minute burst 9"),
        ("token_bucket", ["--capacity", "9", "--refill-rate", "0.1"], "token-bucket 6/minute burst 9"),
        ("leaky-bucket", ["--limit", "5", "--capacity", "9", "--leak-rate", "10/day"], "leaky-bucket 10/day burst 9"),
        ("leaky-bucket", ["--limit", "9", "--mode", "shaping"], "leaky-bucket 9/minute burst 9 shaping"),
    ],
)
def test_an_algorithm_and_its_fields_are_a_rule(capsys, url, rule, fields, text):
    asked = call(capsys, "peek", rule, "fields", *fields, "--store", url)
    assert asked == (0, f"allowed: proceed; 9 of 9 remaining under {text!r}", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["token_bucket", "k"], "capacity is missing: a token-bucket needs capacity and refill_rate, or limit"),
        (["fixed-window", "k", "--limit", "0"], "limit must be from 1 to"),
        (["fixed-window", "k", "--capacity", "5"], "capacity is not a field of a fixed-window; use limit"),
        (
            ["1/s", "k", "--leak-rate", "5"],
            "--leak-rate is a field of an algorithm such as token_bucket, but the rule is",
        ),
        (["100/fortnight", "k"], "unknown unit 'fortnight'"),
        (["1/s", ""], "key must not be empty"),
        (["1/s", "k", "--cost", "0"], "cost must be an int of at least 1"),
        (["1/s", "k", "--store", "ftp://host"], "unknown scheme"),
        (["1/s", "k", "--deadline", "0"], "deadline must be above 0"),
        (["1/s", "k", "--name", ""], "a rule's name must have from 1 to 100 characters"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, url, arguments, complaint):
    status, out, err = call(capsys, "hit", "--store", url, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 0)
    assert complaint in err


@pytest.mark.parametrize("command", ["hit", "peek", "reset"])
def test_a_store_that_does_not_answer_is_an_error_and_never_the_fallback(capsys, command):
    store = f"redis://:secret@127.0.0.1:{servers.free_port()}"
    status, out, err = call(capsys, command, "1/s", "k", "--store", store)
    assert (status, out, err.count("\n")) == (2, "", 0)
    assert err.startswith(f"ratekeeper {command}: Redis did not decide")
    assert "secret" not in err


def test_a_store_that_does_not_answer_is_one_line_in_a_process_of_its_own():
    store = f"redis://127.0.0.1:{servers.free_port()}"
    command = [sys.executable, "-m", "ratekeeper.cli", "hit", "1/s", "k", "--store", store]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("ratekeeper hit: Redis did not decide")


def test_who_named_no_store_is_told_which_one_was_asked(capsys, monkeypatch):
    store = f"redis://127.0.0.1:{servers.free_port()}"
    monkeypatch.setattr(commands, "_STORE", store)
    assert main(["hit", "1/s", "k"]) == 2
    assert capsys.readouterr().err.endswith(f"(the default store is {store}; choose another with --store)\n")
