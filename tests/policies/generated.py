"""Policy files made at random: valid ones, nearly valid ones, and damaged texts; and requests that come near them."""

import copy
import json
import re
from typing import NamedTuple

NAMES = ["user", "tenant", "r1", "a.b", "x_y", "Z-9", "n" * 64]
ATTRIBUTES = ["user", "tenant", "plan", "method", "path", "ip", "header:X-Client", "header:x-plan", "tokens", "ä b"]
VALUES = {
    "method": ["GET", "post", "Put", "DELETE"],
    "path": ["/v1/items", "/V1//x/../items/", "/v1", "/", "/other", "\\v1\\a", "/v1/items/7"],
    "ip": ["10.1.2.3", "::1", "192.0.2.7", "2001:db8::5", "::ffff:10.9.9.9", "unknown"],
    "tokens": [0, 1, 7, "12", "many", -1, "999999999999999999"],
}
PATTERNS = {
    "method": ["GET", "post", "P*"],
    "path": ["/v1/*", "/v1/items", "/*", "*/items", "/V1", "/v1/*/7", "//other/"],
    "ip": ["10.0.0.0/8", "::1", "192.0.2.7", "2001:db8::/32", "10.*", "::/0"],
    "tokens": ["*", "1*", 7],
}
TEXTS = [
    "ada",
    "eve",
    "42",
    42,
    "",
    "acme",
    "a/b",
    "a",
    "aba",
    "anonymous",
    "pro",
    "p*o",
    "Pro",
    "x" * 1_500,
    "ü\n",
    "{user}",
    "*",
]
LIMITS = [
    "{n}/minute",
    "{n}/s",
    "{n} per 2 hours",
    "{n}/15minutes",
    "fixed-window {n}/day",
    "sliding-window-log {n}/30s",
]
LIMITS += [
    "moving-window {n}/hour",
    "{n}/s burst {m}",
    "token-bucket {n}/minute",
    "leaky_bucket {n}/s burst {m} shaping",
]
LIMITS += ["leaky-bucket {n}/minute policing", "unlimited", "blocked", "0/minute", "Fixed-Window {n}/week"]
NASTY = [None, True, False, 0, -1, 1.5, -0.5, 10**13, 10**30, "", " ", "x", [], {}, [[]], {"x": 1}, ["x"], "x" * 3_000]
NASTY += ["100/minit", "slidng-window-log 5/s", "5/s; 6/s", "{user", "user}", "{}", "{ user }", "{a|b|c}", "{a}" * 20]
NASTY += [
    "10.0.0.1/8",
    "0/s",
    "5/0s",
    "5/s burst",
    "fixed-window 5/s burst 9",
    "1e3",
    "010",
    "yes",
    "null",
    "\u0000",
    "~",
]
TYPOS = ["rule", "nam", "limt", "shado", "whn", "Limit", "on-error", "policy", "", " ", "a b", "x" * 65, "$schema"]
DAMAGE = [
    "",
    "&a ",
    "*a",
    "<<: ",
    "!!python/object:os.system ",
    "---\n",
    "...\n",
    "%",
    '"',
    "'",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
]
DAMAGE += [
    "=",
    "\t",
    "\n",
    "\r",
    "#",
    "\u0000",
    "\ufeff",
    "\\",
    "|",
    ">",
    "- ",
    "? ",
    "[[policies.api.rules]]\n",
    "0x1F",
    "é",
    "\ud800",
]


class Example(NamedTuple):
    """A text, and how it was made."""

    kind: str
    format: str
    text: str


def example(random):
    """Return a text of any kind."""
    kind = random.choice(["valid", "valid", "nearly valid", "nearly valid", "damaged"])
    data = {"policies": {name: policy(random) for name in random.sample(["api", *NAMES], random.choice([1, 1, 1, 2]))}}
    if kind == "nearly valid":
        for _ in range(random.choice([1, 1, 1, 2, 3])):
            random.choice([mutate, spoil])(random, data)
    form = random.choice(["toml", "yaml", "json"])
    text = WRITERS[form](random, data)
    if kind == "nearly valid" and random.random() < 0.2:
        text = spoiled(random, text, form)
    if kind == "damaged":
        for _ in range(random.choice([1, 1, 2, 5])):
            text = damaged(random, text)
    return Example(kind, form, text)


# --- policies


def policy(random):
    names = random.sample(NAMES, random.choice([1, 1, 2, 3]))
    made = {"rules": [rule(random, name) for name in names]}
    if random.random() < 0.6:
        made["overrides"] = [override(random, names) for _ in range(random.choice([1, 1, 2, 4]))]
    if random.random() < 0.2:
        made["shadow"] = random.random() < 0.5
    if random.random() < 0.2:
        made["on_error"] = random.choice(["local", "open", "closed", "raise"])
    return shuffled(random, made)


def rule(random, name):
    made = {"name": name, "limit": limit(random), "key": key(random)}
    if random.random() < 0.4:
        made["when"] = when(random)
    if random.random() < 0.3:
        made["cost"] = random.choice([0, 1, 3, "{tokens}", "{tokens|2}", "{header:X-Client|1}"])
    if random.random() < 0.2:
        made["shadow"] = True
    return shuffled(random, made)


def override(random, names):
    limits = {name: limit(random) for name in random.sample(names, random.randint(1, len(names)))}
    return shuffled(random, {"when": when(random), "limits": random.choice(["unlimited", "blocked", *[limits] * 4])})


def limit(random):
    n, m = random.choice([1, 2, 3, 5, 20, 1_000]), random.choice([1, 2, 4, 30])
    if random.random() < 0.7:
        return random.choice(LIMITS).format(n=n, m=m)
    return random.choice(
        [
            {"algorithm": random.choice(["fixed-window", "sliding_window_log", "token-bucket"]), "limit": n},
            {"algorithm": "sliding-window-counter", "limit": n, "window": random.choice([1, 60, "15s", "1h30m", 0.5])},
            {"algorithm": "token-bucket", "capacity": m, "refill_rate": random.choice([1, 10, "5/minute", 0.25])},
            {
                "algorithm": "leaky-bucket",
                "capacity": m,
                "leak_rate": 2,
                "mode": random.choice(["policing", "shaping"]),
            },
        ]
    )


def key(random):
    def part():
        name = random.choice(ATTRIBUTES)
        return random.choice([f"{{{name}}}", f"{{{name}|anonymous}}", f"{{{name}|}}", f"{{{name}}}"])

    return random.choice(["all", "v1:", *["{user}"] * 3, part(), f"{part()}/{part()}", f"x {part()}{part()}"])


def when(random):
    made = {}
    for name in random.sample(ATTRIBUTES, random.choice([0, 1, 1, 1, 2, 3])):
        known = PATTERNS.get(name) or [
            *(each for each in TEXTS if len(f"{each}") < 1_024),
            "p*",
            "*o",
            "a*",
            "*",
            "a*a",
            "ab*ba",
            "a*b*a",
        ]
        made[name] = random.choice(known) if random.random() < 0.6 else random.choices(known, k=random.randint(1, 3))
    return made


def shuffled(random, made):
    return dict(random.sample(list(made.items()), len(made)))


# --- nearly valid


def places(data, found=None):
    """Every table and list in the data, each with its names or positions."""
    found = [] if found is None else found
    if isinstance(data, dict | list):
        found.append(data)
        for each in data.values() if isinstance(data, dict) else data:
            places(each, found)
    return found


def mutate(random, data):
    """Change one thing that is likely to be wrong."""
    known = [each for each in places(data) if each]
    if not known:
        return
    place = random.choice(known)
    at = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
    change = random.choice(["replace", "replace", "replace", "remove", "rename", "add", "again"])
    if change == "replace":
        place[at] = copy.deepcopy(random.choice(NASTY))
    elif change == "remove":
        del place[at]
    elif isinstance(place, list):
        place.append(copy.deepcopy(place[at] if change == "again" else random.choice(NASTY)))
    elif change == "rename":
        place[random.choice([*TYPOS, *NAMES, *ATTRIBUTES])] = place.pop(at)
    else:
        place[random.choice(TYPOS)] = copy.deepcopy(random.choice(NASTY))


def spoil(random, data):
    """Make one of the mistakes that people make."""
    policies = data.get("policies")
    rules = [rule for each in places(policies) if isinstance(each, dict) and "key" in each for rule in [each]]
    others = [each for each in places(policies) if isinstance(each, dict) and "limits" in each]
    rule = random.choice(rules or [{}])
    other = random.choice(others or [{}])
    mistake = random.randrange(8)
    if mistake == 0:
        rule["when"] = {random.choice(ATTRIBUTES): []}
    elif mistake == 1 and isinstance(other.get("limits"), dict):
        other["limits"][random.choice(NAMES)] = "5/s"
    elif mistake == 2:
        rule["key"] = random.choice(
            ["{user", "user}", "{{user}}", "{user}}", "a{b", "{}", "{ user}", "{user }", "{a|b|c}"]
        )
    elif mistake == 3:
        rule["name"] = random.choice(NAMES)
    elif mistake == 4:
        rule["when"] = {"ip": random.choice(["10.0.0.1/8", "10.0.0.0/33", "::1/64", "1.2.3.4/0", "10.0.0.0/255.0.0.0"])}
    elif mistake == 5:
        rule["cost"] = random.choice(
            ["5", "{a}{b}", "{a|x}", "{a|}", "{a|-1}", True, -1, 1.0, "{a|1234567890123456789}"]
        )
    elif mistake == 6:
        rule["limit"] = random.choice(
            ["fixed-window 5/s burst 9", "token-bucket 5/s shaping", {"algorithm": "leaky-bucket"}]
        )
    else:
        other["limits"] = random.choice([{}, "unlimitd", [], {"user": "x"}, None])


def spoiled(random, text, form):
    """Write one value so that a careless reader would take it for something else."""
    names = list(re.finditer(r'"?(name|limit|key|when|limits)"?(: | ?= ?|:)', text))
    if not names:
        return text
    found = random.choice(names)
    before, after = text[: found.end()].rstrip(), text[found.end() :]
    if form == "json":
        return f'{text[: found.start()]}"{found[1]}": "all", {text[found.start() :]}'
    if form == "yaml":
        sign = random.choice(["&a", "*a", "!!str", "!x", "!", "!!python/name:os.system"])
        return f"{before} {sign} {after.lstrip(' ')}"
    return f"{before} {random.choice(['+', '0x', 'inf # ', 'true # ', '1979-05-27 # '])}{after}"


def damaged(random, text):
    at, length = random.randrange(len(text) + 1), random.choice([0, 0, 1, 1, 5])
    how = random.choice(["insert", "insert", "cut", "twice", "swap"])
    if how == "cut":
        return text[:at]
    if how == "twice":
        return text[:at] + text[max(0, at - 40) : at] + text[at:]
    if how == "swap":
        return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    return text[:at] + random.choice(DAMAGE) + text[at + length :]


# --- texts


def written(value):
    """A value as JSON, which is TOML and YAML as well if it is a text or a number that is not too large."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f").replace("\x85", "\\u0085")


def as_json(random, data):
    return json.dumps(data, indent=random.choice([None, 1, 4]), ensure_ascii=random.random() < 0.5)


def as_toml(random, data):
    tables = isinstance(data.get("policies"), dict) and random.random() < 0.7
    if not tables:
        return "".join(f"{toml_name(name)} = {toml(value)}\n" for name, value in data.items() if value is not None)
    lines = []
    for name, value in data.items():
        if name != "policies":
            lines.append(f"{toml_name(name)} = {toml(value)}")
    for name, policy in data["policies"].items():
        if not isinstance(policy, dict) or not policy:
            lines.insert(0, f"policies.{toml_name(name)} = {toml(policy)}")
            continue
        rest = {field: value for field, value in policy.items() if not all_tables(value)}
        lines.append(f"[policies.{toml_name(name)}]  # a comment")
        lines += [f"{toml_name(field)} = {toml(value)}" for field, value in rest.items() if value is not None]
        for field, value in policy.items():
            for each in value if field not in rest else ():
                lines.append(f"\n[[policies.{toml_name(name)}.{toml_name(field)}]]")
                lines += [f"{toml_name(inner)} = {toml(one)}" for inner, one in each.items() if one is not None]
    return "\n".join(lines) + "\n"


def all_tables(value):
    return isinstance(value, list) and value and all(isinstance(each, dict) for each in value)


def toml_name(name):
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else written(name)


def toml(value):
    if isinstance(value, dict):
        inner = ", ".join(f"{toml_name(name)} = {toml(each)}" for name, each in value.items() if each is not None)
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(toml(each) for each in value if each is not None)}]"
    return written(value)


def as_yaml(random, data):
    if random.random() < 0.3:
        return f"# in one line\n{yaml_flow(random, data)}\n"
    return "\n".join(yaml_lines(random, data, 0)) + "\n"


def yaml_lines(random, data, depth):
    blank = "  " * depth
    if isinstance(data, dict) and data and random.random() < 0.9:
        for name, value in data.items():
            if isinstance(value, dict | list) and value:
                yield f"{blank}{yaml_plain(random, name)}:"
                yield from yaml_lines(random, value, depth + 1)
            else:
                yield f"{blank}{yaml_plain(random, name)}: {yaml_flow(random, value)}"
    elif isinstance(data, list) and data and random.random() < 0.9:
        for each in data:
            first, *more = yaml_lines(random, each, depth + 1)
            yield f"{blank}- {first.strip()}"
            yield from more
    else:
        yield f"{blank}{yaml_flow(random, data)}"


def yaml_flow(random, value):
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{yaml_plain(random, name)}: {yaml_flow(random, each)}" for name, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(yaml_flow(random, each) for each in value) + "]"
    return yaml_plain(random, value) if isinstance(value, str) else written(value)


def yaml_plain(random, text):
    """A text with or without quotes; what it means without them is the readers' to find out."""
    is_plain = re.fullmatch(r"[A-Za-z0-9_./-]+( [A-Za-z0-9_./-]+)*", text)
    return text if is_plain and random.random() < 0.7 else written(text)


WRITERS = {"toml": as_toml, "yaml": as_yaml, "json": as_json}


# --- requests


def requests(random, data, count):
    """Return attributes and costs of requests: with values that match a pattern, nearly do, or have nothing to do."""
    patterns = sorted({each for each in re.findall(r'[^"\'\[\]{},\n]+', data) if 0 < len(each.strip()) < 40})
    for _ in range(count):
        attributes = {}
        for name in random.sample(ATTRIBUTES, random.randint(3, len(ATTRIBUTES))):
            value = random.choice([*VALUES.get(name, TEXTS), *TEXTS[:4]])
            if random.random() < 0.1 and patterns:
                value = random.choice(patterns).strip().replace("*", random.choice(["", "x", "/a"]))
            cased = name.upper() if name.startswith("header:") and random.random() < 0.3 else name
            attributes["header:" + cased[7:] if name.startswith("header:") else cased] = value
        yield attributes, random.choice([1, 1, 1, 2, 5])


# --- texts that are to cost a reader much time or memory

LAUGHS = "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMBS = {
    "a billion laughs": ("yaml", f"a: &a [x]\n{LAUGHS}policies: *i\n"),
    "an alias of itself": ("yaml", "policies: &a {api: *a}\n"),
    "merges": ("yaml", "a: &a {b: 1}\npolicies:\n" + "  <<: *a\n" * 10_000),
    "a type": ("yaml", "policies: !!python/object/apply:os.system [sleep 9]\n"),
    "many documents": ("yaml", "---\na: 1\n" * 10_000),
    "lists in lists": ("yaml", "policies: " + "[" * 100_000),
    "lists in lists, in TOML": ("toml", "policies = " + "[" * 100_000),
    "lists in lists, in JSON": ("json", '{"policies": ' + "[" * 100_000),
    "tables in tables": ("json", '{"policies": ' * 10_000),
    "a deep name": ("toml", "a." * 50_000 + "b = 1"),
    "deep names": ("toml", "".join(f"a{number}.b.c.d.e = 1\n" for number in range(1_000))),
    "quotes": ("toml", 'a = """' + '"' * 100_000),
    "escapes": ("toml", 'a = "' + "\\" * 100_001),
    "blanks": ("yaml", "policies:" + " " * 100_000 + "x: y"),
    "comments": ("toml", "#\n" * 50_000 + "x"),
    "a large number": ("json", '{"policies": ' + "9" * 100_000 + "}"),
    "question marks": ("yaml", "? " * 30_000),
    "dashes": ("yaml", "- " * 30_000),
    "unknown fields": ("toml", "[policies.api]\n" + "".join(f"shado{number} = 1\n" for number in range(1_000))),
    "a long limit": ("yaml", f"policies: {{api: {{rules: [{{name: a, key: a, limit: '{'5/s ' * 20_000}'}}]}}}}"),
    "a long key": ("yaml", f"policies: {{api: {{rules: [{{name: a, limit: 1/s, key: '{'{a}' * 20_000}'}}]}}}}"),
    "a long cost": (
        "yaml",
        f"policies: {{api: {{rules: [{{name: a, limit: 1/s, key: a, cost: '{{{'x' * 20_000}}}'}}]}}}}",
    ),
    "too large": ("toml", "x = 1\n" * 1_000_000),
}
