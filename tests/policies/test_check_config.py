"""`ratekeeper check-config` and `ratekeeper schema`."""

import json
import os
import re
import subprocess
import sys

import pytest

from ratekeeper import cli
from ratekeeper.policies import Policies
from ratekeeper.policies.schema import schema
from tests.policies.test_limiting import POLICIES
from tests.policies.test_mistakes import MANY, TOLD


@pytest.fixture
def ratekeeper(capsys):
    """Run the command line; return its exit status, its lines on standard output, and those on standard error."""

    def run(*arguments):
        try:
            status = cli.main(list(map(str, arguments)))
        except SystemExit as error:
            status = error.code
        out, err = capsys.readouterr()
        return status, out.splitlines(), err.splitlines()

    return run


@pytest.fixture
def valid(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(POLICIES)
    return path


def test_a_valid_file(ratekeeper, valid):
    assert ratekeeper("check-config", valid) == (0, [f"{valid}: valid; 1 policy, 3 rules, 4 overrides"], [])


def test_every_mistake_of_a_file_is_printed_with_its_line(ratekeeper, tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(MANY)
    status, out, err = ratekeeper("check-config", path)
    assert (status, err, len(out)) == (1, [], len(TOLD))
    reason = "must be one of local, open, closed, raise, not 'locl'; did you mean 'local'?"
    assert out[0] == f"{path}: line 2: policies.api.on_error: {reason}"
    assert all(line.startswith(f"{path}: line ") for line in out)


@pytest.mark.parametrize("name", ["nowhere.toml", "no=where", "{", "x\ny", "limits"])
def test_a_file_that_is_not_there(ratekeeper, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = ratekeeper("check-config", name)
    assert (status, err) == (1, [])
    assert out[0].endswith("cannot be read: No such file or directory")


def test_explain_shows_rules_keys_and_limits(ratekeeper, valid):
    post = ("user=42", "tenant=acme", "method=post", "path=/v1/items")
    assert ratekeeper("check-config", valid, "--explain", *post) == (
        0,
        [
            "api",
            "  user: fixed-window 3/minute, key '42', cost 1",
            "  writes: fixed-window 2/minute, key 'acme / 42', cost 1",
            "  tokens: its condition is not met: path=/llm",
        ],
        [],
    )
    status, out, _ = ratekeeper(
        "check-config", valid, "--explain", "user=42", "plan=pro", "--cost", 3, "--policy", "api"
    )
    assert (status, out[:2]) == (
        0,
        ["api, by overrides[0] (plan=pro)", "  user: fixed-window 30/minute, key '42', cost 3"],
    )
    status, out, _ = ratekeeper("check-config", valid, "--explain", "plan=plus", "user=42", "path=/llm", "tokens=0")
    assert out == [
        "api, by overrides[2] (plan=p*)",
        "  user: blocked",
        "  writes: its condition is not met: method=POST or PUT, path=/v1/*",
        "  tokens: another rule blocks the request",
    ]
    status, out, _ = ratekeeper("check-config", valid, "--explain", "user=mallory", "path=/llm")
    assert out[1::2] == ["  user: blocked", "  tokens: blocked"]
    status, out, _ = ratekeeper("check-config", valid, "--explain", "ip=10.1.2.3")
    assert out[:2] == ["api, by overrides[1] (ip=10.0.0.0/8 or ::1)", "  user: unlimited"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--explain", "tenant=acme"], "api: attribute 'user' is missing; the key '{user}' needs it"),
        (["--explain", "user"], "write an attribute as NAME=VALUE, not 'user'"),
        (["--explain", "=42"], "write an attribute as NAME=VALUE, not '=42'"),
        (["--explain", "user=42", "--cost", "0"], "api: cost must be an int of at least 1, not 0"),
        (
            ["--explain", "user=42", "--policy", "appi"],
            "appi: policy 'appi' is unknown; the policies are api; did you mean 'api'?",
        ),
    ],
)
def test_what_cannot_be_explained(ratekeeper, valid, arguments, said):
    assert ratekeeper("check-config", valid, *arguments) == (1, [], [f"ratekeeper check-config: {said}"])


BEFORE = """
[policies.api]
[[policies.api.rules]]
name = "user"
limit = "100/minute"
key = "{user}"
[[policies.api.rules]]
name = "all"
limit = "10/s burst 20"
key = "all"
[[policies.api.rules]]
name = "gone"
limit = "1/s"
key = "all"
[[policies.api.overrides]]
when = { plan = "pro" }
limits = { user = "1000/minute" }
[[policies.api.overrides]]
when = { plan = "free" }
limits = "blocked"
[[policies.old.rules]]
name = "a"
limit = "1/s"
key = "all"
"""
AFTER = """
[policies.api]
on_error = "closed"
[[policies.api.rules]]
name = "all"
limit = "100/s burst 20"
key = "all"
shadow = true
[[policies.api.rules]]
name = "user"
limit = "100/hour"
key = "{tenant}/{user}"
when = { method = "POST" }
cost = 2
[[policies.api.rules]]
name = "come"
limit = "unlimited"
key = "all"
[[policies.api.overrides]]
when = { plan = "free" }
limits = "blocked"
[[policies.api.overrides]]
when = {}
limits = "unlimited"
[[policies.new.rules]]
name = "a"
limit = "1/s"
key = "all"
"""


def test_diff_says_what_changes_and_whether_usage_is_kept(ratekeeper, tmp_path):
    before, after = tmp_path / "before.toml", tmp_path / "after.toml"
    before.write_text(BEFORE)
    after.write_text(AFTER)
    counter, anew = "sliding-window-counter 100", "(another algorithm or window: its usage is counted anew)"
    assert ratekeeper("check-config", before, "--diff", after) == (
        0,
        [
            f"from {before} to {after}: 14 changes",
            "- policy old",
            "+ policy new",
            "~ api: on_error local -> closed",
            "- api: rule gone (sliding-window-counter 1/s)",
            "~ api: rule all: limit token-bucket 10/s burst 20 -> token-bucket 100/s burst 20 (its usage is kept)",
            "~ api: rule all: shadow false -> true",
            f"~ api: rule user: limit {counter}/minute -> {counter}/hour {anew}",
            "~ api: rule user: key '{user}' -> '{tenant}/{user}' (its usage is counted anew)",
            "~ api: rule user: when always -> method=POST",
            "~ api: rule user: cost 1 -> 2",
            "+ api: rule come (unlimited)",
            "~ api: the order of the rules",
            "- api: override plan=pro: user sliding-window-counter 1000/minute",
            "+ api: override every request: unlimited",
        ],
        [],
    )
    assert ratekeeper("check-config", before, "--diff", before)[1] == [f"from {before} to {before}: 0 changes"]


def test_diff_refuses_a_bad_file_too(ratekeeper, valid, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("policies = 5")
    for files in ((valid, "--diff", bad), (bad, "--diff", valid)):
        status, out, err = ratekeeper("check-config", *files)
        assert (status, err) == (1, [])
        assert out == [f"{bad}: line 1: policies: must be a table of policies, as in [policies.api], not 5"]


@pytest.mark.parametrize("command", ["check-config", "schema"])
def test_help_has_an_example(ratekeeper, command):
    status, out, _ = ratekeeper(command, "--help")
    assert status == 0
    assert any(line.strip().startswith(f"ratekeeper {command}") for line in out)


def test_a_terminal_that_knows_only_ascii_and_hostile_names(valid, tmp_path):
    path = tmp_path / "limits.json"
    path.write_text(json.dumps({"policies": {"\x1b[31mré\n": {"rules": [], "\ud800": 1}}}))
    ran = subprocess.run(
        [sys.executable, "-m", "ratekeeper", "check-config", path],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (ran.returncode, ran.stderr) == (1, b"")
    assert b"\x1b" not in ran.stdout
    assert b"Traceback" not in ran.stdout


# The schema.


def is_valid(data):
    jsonschema_rs = pytest.importorskip("jsonschema_rs")  # comes with schemathesis, on Python 3.11 and newer
    return jsonschema_rs.validator_for(schema()).is_valid(data)


def test_the_schema_is_printed_and_published(ratekeeper, pytestconfig):
    status, out, _ = ratekeeper("schema")
    assert (status, json.loads("\n".join(out))) == (0, schema())
    published = pytestconfig.rootpath / "docs" / "policies.schema.json"
    assert json.loads(published.read_text()) == schema(), "run: ratekeeper schema > docs/policies.schema.json"


def test_the_schema_accepts_what_is_valid():
    tomllib = pytest.importorskip("tomllib")
    for text in (POLICIES, BEFORE, AFTER):
        assert Policies.load(text)
        assert is_valid(tomllib.loads(text))


def test_the_schema_refuses_mistakes():
    tomllib = pytest.importorskip("tomllib")
    rule = {"name": "a", "limit": "5/s", "key": "all"}
    assert is_valid({"policies": {"p": {"rules": [rule]}}})
    assert not is_valid(tomllib.loads(MANY))
    for bad in (
        {"nam": "b"},
        {"name": "a b"},
        {"limit": 5},
        {"limit": {"algorithm": "token"}},
        {"key": "{user"},
        {"key": ""},
        {"cost": "5"},
        {"cost": -1},
        {"when": {"a": []}},
        {"when": {"a": True}},
        {"shadow": "yes"},
    ):
        assert not is_valid({"policies": {"p": {"rules": [rule | bad]}}}), bad
    for field in rule:
        assert not is_valid({"policies": {"p": {"rules": [{name: rule[name] for name in rule if name != field}]}}})


def test_every_word_of_the_schema_is_explained():
    for name, table in schema()["$defs"].items():
        assert name == "pattern" or re.match("[A-Z].*[.]$", table["description"])
