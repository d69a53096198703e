"""`ratekeeper hit` and its like on a real server, and their exit status."""

import json
import os
import signal
import subprocess
import sys

import pytest
import redis

from ratekeeper import Limiter, command_targets, commands
from ratekeeper.cli import main
from tests import servers
from tests.waiters import PATIENCE, until


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


@pytest.mark.parametrize("command", ["hit", "peek", "wait", "charge", "refund", "inspect", "reset"])
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
    monkeypatch.setattr(commands, "STORE", store)
    monkeypatch.setattr(command_targets, "STORE", store)
    assert main(["hit", "1/s", "k"]) == 2
    assert capsys.readouterr().err.endswith(f"(the default store is {store}; choose another with --store)\n")


# Charging, giving back, waiting, looking


def test_a_charge_and_a_refund_are_done_whatever_is_left(capsys, url):
    target = ("fixed-window 2/day", "charged", "--store", url)
    rule = "under 'fixed-window 2/day'"
    assert call(capsys, "charge", *target, "--cost", "5") == (0, f"charged 5; 0 of 2 remaining {rule}", "")
    assert call(capsys, "refund", *target, "--cost", "4") == (0, f"refunded 4; 1 of 2 remaining {rule}", "")
    status, out, _ = call(capsys, "refund", *target, "--json")
    assert (status, json.loads(out)["remaining"]) == (0, 2)


def test_waiting_ends_when_the_hit_is_admitted(capsys, url):
    target = ("fixed-window 1/200ms", "waits", "--store", url)
    rule = "under 'fixed-window 1/200ms'"
    for _ in range(3):
        assert call(capsys, "wait", *target, "--timeout", "30") == (0, f"allowed: proceed; 0 of 1 remaining {rule}", "")


def test_a_wait_that_cannot_end_in_time_ends_at_once(capsys, url):
    target = ("fixed-window 1/day", "late", "--store", url)
    assert call(capsys, "wait", *target)[0] == 0
    status, out, err = call(capsys, "wait", *target, "--timeout", "1")
    assert (status, out.startswith("denied: try again in "), err) == (1, True, "")


def test_ctrl_c_ends_a_wait_and_nothing_is_consumed(url):
    target = ["fixed-window 1/day", "interrupted", "--store", url, "--deadline", "30"]
    command = [sys.executable, "-m", "ratekeeper.cli"]
    subprocess.run([*command, "hit", *target], check=True, stdout=subprocess.DEVNULL)
    waiting = subprocess.Popen([*command, "wait", *target], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with redis.Redis.from_url(url) as client:
        until(lambda: any(each["cmd"] == "evalsha" for each in client.client_list()), "it was denied, and waits")
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=PATIENCE) == (b"", b"")
    assert waiting.returncode == 130


def test_an_inspection_shows_how_a_key_is_stored(capsys, url):
    target = ("fixed-window 9/day", "seen", "--store", url)
    call(capsys, "hit", *target, "--cost", "4")
    status, out, err = call(capsys, "inspect", *target)
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert (status, err, lines[0]) == (0, "", ["fixed-window", "9/day"])
    shown = dict(lines[1:])
    assert json.loads(shown["state"])["count"] == 4
    assert shown["name"] == "ratekeeper:fw::9/day:{seen}"
    assert 0 < float(shown["ttl"]) <= 2 * 86_400
    asked = json.loads(call(capsys, "inspect", *target, "--json")[1])
    assert asked["rules"]["fixed-window 9/day"]["name"] == shown["name"]


# Keys that are not one text


def test_several_texts_are_a_tuple(capsys, url):
    with Limiter("fixed-window 9/day", url, on_error="raise") as limiter:
        limiter.hit(("acme", "user:42"), 4)
    where = ("--store", url)
    told = (0, "allowed: proceed; 5 of 9 remaining under 'fixed-window 9/day'", "")
    assert call(capsys, "peek", "fixed-window 9/day", "acme", "user:42", *where) == told
    assert call(capsys, "peek", "fixed-window 9/day", *where, "acme", "user:42") == told
    assert call(capsys, "peek", "fixed-window 9/day", "acme", *where, "user:42") == told
    assert call(capsys, "reset", "fixed-window 9/day", "acme", "user:42", *where) == (0, "acme user:42: reset", "")


def test_a_key_with_integers_is_given_as_json(capsys, url):
    with Limiter("fixed-window 9/day", url, on_error="raise") as limiter:
        limiter.hit(("acme", 42), 4)
        limiter.hit(42, 5)
    where = ("fixed-window 9/day", "--store", url, "--json")
    for key, remaining in (('["acme", 42]', 5), ("42", 4)):
        assert json.loads(call(capsys, "peek", *where, "--json-key", key)[1])["remaining"] == remaining


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "a rule and a key are needed, or --policy and attributes such as user=42"),
        (["1/s"], "a key is needed after the rule '1/s'"),
        (["1/s", "--json-key", "[acme"], "--json-key must be JSON, such as 42 or '[\"acme\", 42]', not '[acme'"),
        (["1/s", "--json-key", "1.5"], "key must be a str, bytes or int, or a tuple of these, not 1.5"),
        (["1/s", "k", "--json-key", "42"], "--json-key is the key; leave out 'k'"),
    ],
)
def test_a_key_that_cannot_be_is_told(capsys, url, arguments, complaint):
    assert call(capsys, "hit", "--store", url, *arguments) == (2, "", f"ratekeeper hit: {complaint}")


# Policies


@pytest.fixture
def policies(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text("""
[[policies.api.rules]]
name = "user"
limit = "fixed-window 9/day"
key = "{user}"
when = { method = "POST" }
""")
    return str(path)


def test_a_policy_decides_by_the_attributes_of_a_request(capsys, url, policies):
    by = ("--policies", policies, "--policy", "api", "--store", url)
    told = "allowed: proceed; 5 of 9 remaining under 'user'"
    assert call(capsys, "hit", *by, "--cost", "4", "user=42", "method=POST") == (0, told, "")
    assert call(capsys, "peek", "user=42", *by, "method=POST") == (0, told, "")
    assert call(capsys, "hit", "user=42", "method=GET", *by) == (0, "allowed: proceed; no rule limits the request", "")
    assert call(capsys, "inspect", "user=42", "method=POST", *by)[1].startswith("user: fixed-window 9/day\n")
    assert call(capsys, "reset", "user=42", "method=POST", *by) == (0, "user=42 method=POST: reset", "")


def test_the_file_may_come_from_the_environment(capsys, monkeypatch, url, policies):
    monkeypatch.setenv("RATEKEEPER_POLICIES", policies)
    monkeypatch.setenv("RATEKEEPER_STORE", url)
    assert call(capsys, "hit", "--policy", "api", "user=43", "method=POST")[0] == 0
    assert call(capsys, "hit", "fixed-window 9/day", "43")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "api", "user=42"], "--policy needs --policies FILE"),
        (
            ["--policies", "{}", "--policy", "ap", "user=42"],
            "policy 'ap' is unknown; the policies are api; did you mean",
        ),
        (["--policies", "{}", "--policy", "api", "42"], "write an attribute as NAME=VALUE, not '42'"),
        (["--policies", "{}", "--policy", "api", "method=POST"], "attribute 'user' is missing"),
        (
            ["--policies", "{}", "--policy", "api", "user=1", "--limit", "5"],
            "--limit is for a rule; with --policy",
        ),
        (["--policies", "{}x", "--policy", "api", "user=1"], "No such file"),
    ],
)
def test_what_a_policy_cannot_decide_is_told(capsys, url, policies, arguments, complaint):
    given = [each.replace("{}", policies) for each in arguments]
    status, out, err = call(capsys, "hit", "--store", url, *given)
    assert (status, out, err.count("\n")) == (2, "", 0)
    assert complaint in err


def test_a_file_with_mistakes_is_told_with_the_first_one(capsys, tmp_path, url):
    (tmp_path / "limits.toml").write_text("[policies.api]\nshadow = 1\n")
    by = ("--policies", str(tmp_path / "limits.toml"), "--policy", "api", "--store", url)
    status, _, err = call(capsys, "hit", *by, "user=42")
    assert (status, err.count("\n")) == (2, 0)
    assert (
        f"line 1: policies.api.rules: a policy needs at least one rule; run ratekeeper check-config {tmp_path}" in err
    )
