"""Every mistake in a file is told at once, with its line, its place, the reason and the nearest valid word."""

import json
import pickle
import time

import pytest

from ratekeeper.policies import InvalidPolicies, Policies

MANY = """\
[policies.api]
on_error = "locl"
shado = true

[[policies.api.rules]]
name = "user"
limit = "100/minit"
key = "{user"

[[policies.api.rules]]
name = "user"
limit = { algorithm = "token_buket", capacity = 20 }
key = 3
cost = "5"
when = { method = [], plan = [true, 1.5], ip = [
  "10.0.0.1/8"] }

[[policies."a b".rules]]
nam = "x"

[[policies.api.overrides]]
limits = { usr = "5/s", user = "slidng-window-log 5/s" }

[[policies.api.overrides]]
when = { plan = "pro" }
limits = "unlimitd"
"""
TOLD = [
    (2, "policies.api.on_error", "must be one of local, open, closed, raise, not 'locl'", "local"),
    (
        3,
        "policies.api.shado",
        "is not a field of a policy; its fields are on_error, local_share, lease, callers, shadow, rules, overrides",
        "shadow",
    ),
    (7, "policies.api.rules[0].limit", "rule '100/minit': unknown unit 'minit'", "min"),
    (8, "policies.api.rules[0].key", "has an unmatched '{' or '}'", None),
    (11, "policies.api.rules[1].name", "'user' is given twice", None),
    (12, "policies.api.rules[1].limit.algorithm", "'token_buket' is unknown", "token-bucket"),
    (13, "policies.api.rules[1].key", "must be a text such as '{user}'", None),
    (14, "policies.api.rules[1].cost", "must be a number or one attribute such as '{tokens}', not '5'; write 5", None),
    (15, "policies.api.rules[1].when.method", "an empty list matches nothing", None),
    (15, "policies.api.rules[1].when.plan[0]", "must be a text, a whole number or a list of these, not True", None),
    (15, "policies.api.rules[1].when.plan[1]", "must be a text, a whole number or a list of these, not 1.5", None),
    (16, "policies.api.rules[1].when.ip[0]", "'10.0.0.1/8' has host bits set", "10.0.0.0/8"),
    (18, "policies.a b", "a name must have from 1 to 64 letters, digits, '_', '.' or '-', not 'a b'", None),
    (18, "policies.a b.rules[0].name", "a rule needs a name", None),
    (18, "policies.a b.rules[0].limit", "a rule needs a limit", None),
    (18, "policies.a b.rules[0].key", "a rule needs a key", None),
    (19, "policies.a b.rules[0].nam", "is not a field of a rule", "name"),
    (21, "policies.api.overrides[0].when", "an override needs a `when`", None),
    (22, "policies.api.overrides[0].limits.usr", "is not a rule of this policy; its rules are user", "user"),
    (22, "policies.api.overrides[0].limits.user", "unknown algorithm 'slidng-window-log'", "sliding-window-log"),
    (26, "policies.api.overrides[1].limits", 'must be "unlimited", "blocked" or a limit by rule', "unlimited"),
]


def mistakes(text, **options):
    with pytest.raises(InvalidPolicies) as raised:
        Policies.load(text, **options)
    return raised.value


def test_all_mistakes_are_told_at_once():
    found = mistakes(MANY).mistakes
    told = sorted(found, key=lambda each: (each.line, [place for _, place, *_ in TOLD].index(each.place)))
    assert [(each.line, each.place, each.suggestion) for each in told] == [
        (line, place, suggestion) for line, place, _, suggestion in TOLD
    ]
    for each, (_, _, reason, _) in zip(told, TOLD, strict=True):
        assert reason in each.reason


def test_the_same_lines_are_told_in_every_format():
    yaml = "policies:\n  api:\n    rules:\n      - name: a\n        limit: 5/x\n        key: all\n      - {name: b}\n"
    rules = '[\n   {"name": "a",\n    "limit": "5/x",\n    "key": "all"},\n {"name": "b"}]'
    text = f'{{"policies":\n {{"api":\n  {{"rules": {rules}}}}}}}'
    table = "[[policies.api.rules]]"
    toml = f'\n{table}\n# a comment\nname = "a"\nlimit = "5/x"\nkey = "all"\n{table}\nname = "b"\n'
    for each in (yaml, text, toml):
        assert [(mistake.line, mistake.place) for mistake in mistakes(each).mistakes] == [
            (5, "policies.api.rules[0].limit"),
            (7, "policies.api.rules[1].limit"),
            (7, "policies.api.rules[1].key"),
        ]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("[policies.api\n", 1, "Expected ']' at the end of a table declaration"),
        ('[policies]\na = "x\n', 2, "Illegal character"),
        ("[policies]\n[policies]\n", 2, "Cannot declare"),
        ('{"policies": \n {]}', 2, "Expecting property name"),
        ('{"policies": {},\n "policies": {}}', 2, "given twice"),
        ('{"policies": NaN}', None, "NaN is not JSON"),
        ("policies:\n  api: [\n", 3, "did not find"),
        ("policies:\n\tapi: 1\n", 2, "cannot start any token"),
        ("policies: 1\npolicies: 2\n", 2, "given twice"),
        ("policies: &a\n  b: 1\n", 1, "anchors"),
        ("policies:\n  api: *a\n", 2, "anchors"),
        ("policies:\n  <<: {a: 1}\n", 2, "merge keys"),
        ("policies: !!python/object:os.system x\n", 1, "tags such as"),
        ("policies: !!set {a}\n", 1, "tags such as"),
        ("? [a]\n: 1\n", 1, "a name must be a text"),
        ("policies: 1\n---\na: 1\n", 2, "one document"),
        ("policies: " + "[" * 50_000, 1, "nested more than 12 levels"),
        ('{"policies": ' + "[" * 100_000, 1, "nested more than 12 levels"),
        ("policies = " + "[" * 100_000, 1, "nested more than 12 levels"),
        ("[policies]\n" + "a." * 100_000 + "b = 1", 2, "nested more than 12 levels"),
        ("x" + "= 1\nx" * 1_000_000, None, "larger than 4 MiB"),
        ("policies: \x00\n", None, "characters are not allowed"),
    ],
)
def test_after_a_syntax_error_only_that_one_is_told(text, line, reason):
    begun = time.process_time()
    (mistake,) = mistakes(text).mistakes
    assert (mistake.line if line else None) == line
    assert reason.lower() in mistake.reason.lower()
    assert time.process_time() - begun < 1  # ten times the promise


@pytest.mark.parametrize(
    ("text", "format", "said"),
    [
        ("", None, "policies: is missing; it must be a table of policies"),
        ("5", "yaml", "must be a table, policies, not 5"),
        ("[]", "json", "must be a table, policies, not []"),
        ("policies = 5", None, "line 1: policies: must be a table of policies, as in [policies.api], not 5"),
        ("[policies]", None, "line 1: policies: has 0 policies; from 1 to 1000 are allowed"),
        ("[policies.api]", None, "line 1: policies.api.rules: a policy needs at least one rule"),
        ("[policies]\napi = 1979-05-27", None, "line 2: policies.api: must be a table, a policy, not datetime.date"),
        ("[policies.api]\nrules = [1]\noverrides = 5", None, "line 2: policies.api.rules[0]: must be a table, a rule"),
    ],
)
def test_what_is_no_file_of_policies_is_refused(text, format, said):  # noqa: A002 - the option's name
    assert said in str(mistakes(text, format=format))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    assert "cannot be read: No such file" in str(mistakes("nowhere.toml"))
    assert "cannot be read: Is a directory" in str(mistakes(tmp_path))
    (tmp_path / "latin.toml").write_bytes(b"# ok\n# \xe9\n")
    (mistake,) = mistakes(tmp_path / "latin.toml").mistakes
    assert (mistake.line, mistake.reason) == (2, "this is not UTF-8")
    assert str(mistakes(tmp_path / "latin.toml")).startswith(f"{tmp_path / 'latin.toml'}: line 2: ")


@pytest.mark.parametrize("path", [5, None, b"policies"])
def test_a_path_or_a_text_is_needed(path):
    with pytest.raises(TypeError, match="must be a path or a text"):
        Policies.load(path)


def test_the_format_follows_the_suffix_or_the_text(tmp_path):
    rule = {"name": "a", "limit": "5/s", "key": "all"}
    content = {
        "toml": '[[policies.api.rules]]\nname = "a"\nlimit = "5/s"\nkey = "all"\n',
        "yaml": "# policies\npolicies:\n  api:\n    rules:\n      - {name: a, limit: 5/s, key: all}\n",
        "json": json.dumps({"$schema": "schema.json", "policies": {"api": {"rules": [rule]}}}),
    }
    for kind, text in content.items():
        path = tmp_path / f"limits.{kind}"
        path.write_text(f"\ufeff{text}", "utf-8")
        for loaded in (Policies.load(path), Policies.load(str(path)), Policies.load(text)):
            assert (loaded.format, list(loaded), loaded["api"].rules[0].limit.text) == (
                kind,
                ["api"],
                "sliding-window-counter 5/s",
            )
        assert Policies.load(path).path == path
    (tmp_path / "limits.yml").write_text(content["yaml"])
    assert Policies.load(tmp_path / "limits.yml").format == "yaml"


def test_numbers_and_words_in_yaml():
    def loaded(rule):
        (rule,) = Policies.load(f"policies: {{p: {{rules: [{{name: a, key: all, {rule}}}]}}}}")["p"].rules
        return rule

    rule = loaded("limit: {algorithm: token-bucket, capacity: 1_000, refill_rate: 0.1}")
    assert rule.limit.text == "token-bucket 6/minute burst 1000"
    rule = loaded("limit: 5/s, when: {a: 010, b: 0x1F, c: 1:30, d: 2024-01-01, e: -5}")
    assert rule.when.given == {"a": ("010",), "b": ("0x1F",), "c": ("1:30",), "d": ("2024-01-01",), "e": ("-5",)}


def test_an_error_with_mistakes_can_be_pickled():
    error = mistakes(MANY)
    assert pickle.loads(pickle.dumps(error)).mistakes == error.mistakes
    assert str(error).startswith("line 2: policies.api.on_error: must be one of local")
    assert str(error).endswith("... and 1 more")


@pytest.mark.parametrize(
    "limit",
    ["", "5", "5/s; 6/s", "5/s burst", "fixed-window 5/s burst 9", 5, None, [], {}, {"limit": 5}, {"algorithm": 5}],
)
def test_a_bad_limit_is_refused(limit):
    rules = [{"name": "a", "limit": limit, "key": "all"}]
    found = mistakes(json.dumps({"policies": {"p": {"rules": rules}}})).mistakes
    assert len(found) == 1
    assert found[0].place.startswith("policies.p.rules[0].limit")


def test_fields_of_a_limit_are_checked():
    fields = [
        ({"algorithm": "token-bucket", "capacty": 5}, "limit.capacty", "capacity"),
        ({"algorithm": "fixed-window", "capacity": 5}, "limit.capacity", None),
        ({"algorithm": "fixed-window", "limit": 0}, "limit.limit", None),
        ({"algorithm": "fixed-window", "limit": 5, "window": "1 fortnight"}, "limit.window", None),
        ({"algorithm": "leaky-bucket", "limit": 5, "mode": "shapping"}, "limit.mode", None),
    ]
    for limit, place, suggestion in fields:
        (mistake,) = mistakes(
            json.dumps({"policies": {"p": {"rules": [{"name": "a", "limit": limit, "key": "k"}]}}})
        ).mistakes
        assert (mistake.place, mistake.suggestion) == (f"policies.p.rules[0].{place}", suggestion)


def test_sizes_are_bounded():
    rule = {"name": "a", "limit": "5/s", "key": "all"}

    def told(policy):
        return [
            (each.place, each.reason.split(";")[0])
            for each in mistakes(json.dumps({"policies": {"p": policy}})).mistakes
        ]

    many = [rule | {"name": f"r{number}"} for number in range(33)]
    assert told({"rules": many}) == [("policies.p.rules", "has 33 entries")]
    overrides = [{"when": {}, "limits": "blocked"}] * 10_001
    assert told({"rules": [rule], "overrides": overrides}) == [("policies.p.overrides", "has 10001 entries")]
    attributes = {f"a{number}": "x" for number in range(17)}
    assert told({"rules": [rule | {"when": attributes}]}) == [("policies.p.rules[0].when", "names 17 attributes")]
    patterns = {"a": ["x"] * 10_001, "b": "x" * 1025, "c": 10**2000}
    assert [place for place, _ in told({"rules": [rule | {"when": patterns}]})] == [
        f"policies.p.rules[0].when.{name}" for name in "abc"
    ]
