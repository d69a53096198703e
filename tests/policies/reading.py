"""An independent reading of policy files: what a file means, from the documents and not from the code.

`read` returns the policies in a text, or raises `Refused`; where the documents leave a value open, it raises `Unsure`.
A `ReadPolicy` then decides on requests by counting: while no time passes, every algorithm is a counter.
"""

import ipaddress
import json
import math
import re
import sys
from collections import defaultdict
from typing import NamedTuple

import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALGORITHMS = {
    **dict.fromkeys(("fixed-window", "sliding-window-log", "sliding-window-counter"), "window"),
    "token-bucket": "refill_rate",
    "leaky-bucket": "leak_rate",
}
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}  # in ms
WORDS = {
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 604_800,
    "month": 2_592_000,
    "year": 31_536_000,
}
UNITS |= {word + plural: 1_000 * seconds for word, seconds in WORDS.items() for plural in ("", "s")}
OTHER_UNITS = [
    "us",
    "usec",
    "usecs",
    "microsecond",
    "microseconds",
    "msec",
    "msecs",
    "millisecond",
    "milliseconds",
    "sec",
    "secs",
    "min",
    "mins",
    "hr",
    "hrs",
]
OTHER_UNITS += ["w", "wk", "wks", "mo", "mos", "y", "yr", "yrs"]
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
LONGEST_WINDOW = 2**45 // 1_000  # in ms


class Refused(Exception):
    """This is no valid policy file."""


class Unsure(Exception):
    """The documents do not say what this means."""


def need(condition, reason="wrong"):
    if not condition:
        raise Refused(reason)


# --- from a text to plain data


def data_of(text, form):
    text = text.removeprefix("\ufeff")
    try:
        text.encode()  # UTF-8
        return {"toml": tomllib.loads, "json": read_json, "yaml": read_yaml}[form](text)
    except RecursionError:
        raise Refused("too deep") from None
    except ValueError as error:  # a syntax error; or a number with too many digits
        raise Refused(str(error)) from None


def read_json(text):
    def once(pairs):
        need(len(dict(pairs)) == len(pairs), "a name is given twice")
        return dict(pairs)

    def constant(name):
        raise Refused(f"{name} is not JSON")

    return json.loads(text, object_pairs_hook=once, parse_constant=constant)


def read_yaml(text):
    """One document of mappings, lists and scalars: nothing that refers, and nothing with a type of its own."""
    by_each = [yaml_events(text, loader) for loader in (yaml.SafeLoader, yaml.CSafeLoader)]
    need(any(by_each), "no YAML")
    if not all(by_each):
        raise Unsure("the two parsers of PyYAML disagree")
    events = by_each[0]
    need(sum(isinstance(event, yaml.DocumentStartEvent) for event in events) <= 1, "several documents")
    for event in events:
        need(not isinstance(event, yaml.AliasEvent) and not getattr(event, "anchor", None), "an anchor or an alias")
        need(getattr(event, "tag", None) in (None, "!"), "a tag")
    values = [each for each in events if isinstance(each, yaml.NodeEvent | yaml.CollectionEndEvent)]
    return yaml_value(values[::-1]) if values else None


def yaml_events(text, loader):
    try:
        return list(yaml.parse(text, Loader=loader))
    except yaml.YAMLError:
        return None


def yaml_value(left):
    """Take one value from the events that are left, of which the next is the last one."""
    event = left.pop()
    if isinstance(event, yaml.ScalarEvent):
        return yaml_scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        found = []
        while not isinstance(left[-1], yaml.SequenceEndEvent):
            found.append(yaml_value(left))
    else:
        found = {}
        while not isinstance(left[-1], yaml.MappingEndEvent):
            name = left.pop()
            need(isinstance(name, yaml.ScalarEvent), "a name that is no text")
            need(not (name.value == "<<" and name.implicit[0]), "a merge key")
            need(name.value not in found, "a name is given twice")
            found[name.value] = yaml_value(left)
    left.pop()
    return found


def yaml_scalar(event):
    text = event.value
    if not event.implicit[0]:
        return text
    tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False)).rpartition(":")[2]
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() in ("yes", "true", "on")
    if tag == "int" and re.fullmatch(r"[-+]?[1-9][0-9]{0,30}|0", text):
        return int(text)
    if tag == "float" and re.fullmatch(r"[-+]?[0-9]{1,30}\.[0-9]{1,30}", text):
        return float(text)
    if tag == "str":
        return text
    raise Unsure(f"{text!r} is a {tag} to some readers of YAML")


# --- from plain data to policies


class ReadRule(NamedTuple):
    name: str
    limit: object
    key: list
    when: dict
    cost: object
    shadow: bool


class ReadLimit(NamedTuple):
    limit: int
    counted_with: tuple
    """Limits of a rule that have this in common count together: the algorithm, and the window if it has one."""


def read(text, form):
    data = data_of(text, form)
    fields(data, ["policies"], ["$schema"])
    if not isinstance(data.get("$schema", ""), str):
        raise Unsure("a schema that is no text")
    need(isinstance(data["policies"], dict) and 1 <= len(data["policies"]) <= 1_000)
    found = {}
    for name, policy in data["policies"].items():
        need(NAME.fullmatch(name), "the name of a policy")
        found[name] = ReadPolicy(policy)
    return found


def fields(data, needed, others=()):
    need(isinstance(data, dict), "not a table")
    need(all(name in data for name in needed), "a field is missing")
    need(all(name in needed or name in others for name in data), "an unknown field")


def flag(data):
    need(isinstance(data.get("shadow", False), bool), "shadow")
    return data.get("shadow", False)


def read_rule(data):
    fields(data, ["name", "limit", "key"], ["when", "cost", "shadow"])
    need(isinstance(data["name"], str) and NAME.fullmatch(data["name"]), "the name of a rule")
    cost = read_cost(data["cost"]) if "cost" in data else None
    return ReadRule(data["name"], read_limit(data["limit"]), read_key(data["key"]), read_when(data), cost, flag(data))


def read_override(data, rules):
    fields(data, ["when", "limits"])
    limits = data["limits"]
    if isinstance(limits, str):
        if limits not in ("unlimited", "blocked") and limits.strip().lower() in ("unlimited", "blocked"):
            raise Unsure("a word in other letters")
        need(limits in ("unlimited", "blocked"), "limits")
    else:
        need(isinstance(limits, dict) and limits, "limits")
        need(all(name in rules for name in limits), "an unknown rule")
        limits = {name: read_limit(limit) for name, limit in limits.items()}
    return read_when(data), limits


def read_key(text):
    """Return the attributes in a key, each with its default; the texts between them are the same for all requests."""
    need(isinstance(text, str) and 1 <= len(text) <= 1_024, "a key")
    pieces = re.split(r"(\{[^{}]*\})", text)
    need(not any("{" in piece or "}" in piece for piece in pieces[::2]), "a brace")
    if len(pieces) > 9:
        raise Unsure("many parts")
    return [read_attribute(piece) for piece in pieces[1::2]]


def read_attribute(piece):
    name, bar, default = piece[1:-1].partition("|")
    need(name and name == name.strip(), "no attribute")
    need("|" not in default, "two defaults")
    return known_as(name), default if bar else None


def read_cost(cost):
    if isinstance(cost, int) and not isinstance(cost, bool):
        need(cost >= 0, "a cost below 0")
        if cost >= 10**17:
            raise Unsure("a large cost")
        return cost
    need(isinstance(cost, str) and len(cost) <= 1_024 and re.fullmatch(r"\{[^{}]*\}", cost), "a cost")
    name, default = read_attribute(cost)
    need(default is None or re.fullmatch(r"[0-9]{1,18}", default), "the default of a cost")
    return name, None if default is None else int(default)


def read_when(data):
    when = data.get("when", {})
    need(isinstance(when, dict) and len(when) <= 16, "when")
    found = defaultdict(list)
    for name, given in when.items():
        need(1 <= len(name) <= 1_024, "the name of an attribute")
        patterns = given if isinstance(given, list) else [given]
        need(1 <= len(patterns) <= 10_000, "patterns")
        need(all(isinstance(each, str | int) and not isinstance(each, bool) for each in patterns), "a pattern")
        texts = [each if isinstance(each, str) else f"{each}" for each in patterns]
        need(all(len(each) <= 1_024 for each in texts), "a long pattern")
        need(all(network_of(each) is not None or not is_loose_network(each) for each in texts), "host bits")
        found[known_as(name)].append(texts)
    return dict(found)


def known_as(name):
    return name.lower() if name.lower().startswith("header:") else name


# --- limits


def read_limit(data):
    if isinstance(data, str):
        return read_limit_text(data)
    fields(data, ["algorithm"], ["limit", "window", "capacity", "refill_rate", "leak_rate", "mode"])
    need(isinstance(data["algorithm"], str), "an algorithm")
    algorithm = algorithm_called(data["algorithm"])
    kind = ALGORITHMS[algorithm]
    counts = {name: data[name] for name in ("limit", "capacity") if name in data}
    for count in counts.values():
        need(isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 10**12, "a count")
    period = duration(data["window"]) if "window" in data else 60_000
    if "mode" in data and algorithm != "leaky-bucket":
        need(data["mode"] == "policing", "a mode")
    need(data.get("mode", "policing") in ("policing", "shaping"), "a mode")
    if kind == "window":
        need("limit" in data and not data.keys() & {"capacity", "refill_rate", "leak_rate"}, "the fields of a window")
        return limit_of(algorithm, data["limit"], data["limit"], period)
    need(not data.keys() & {"refill_rate", "leak_rate"} - {kind}, "the rate of another algorithm")
    need("limit" in data or ("capacity" in data and kind in data), "a bucket without its size")
    if "limit" in data and len(data.keys() & {"capacity", kind}) > 0:
        raise Unsure("a limit beside what it stands for")
    if kind in data:
        if "window" in data:
            raise Unsure("a window beside a rate")
        return limit_of(algorithm, data["capacity"], *rate(data[kind]))
    return limit_of(algorithm, data["limit"], data["limit"], period)


def read_limit_text(text):
    if text in ("unlimited", "blocked"):
        return text
    found = re.fullmatch(
        r"(?:([A-Za-z_-]+) )?([0-9]+)(?:/| per )([0-9]*) ?([A-Za-z]+)(?: burst ([0-9]+))?(?: (policing|shaping))?", text
    )
    if found is None:
        need(re.search("[0-9]", text) or any(word in text.lower() for word in ("unlimited", "blocked")), "no limit")
        raise Unsure("another notation")
    name, count, periods, unit, burst, mode = found.groups()
    if unit not in UNITS:
        if unit.lower() in UNITS or unit.lower() in OTHER_UNITS:
            raise Unsure("a unit in other words")
        raise Refused("a unit")
    algorithm = algorithm_called(name or ("token-bucket" if burst else "sliding-window-counter"))
    is_bucket = ALGORITHMS[algorithm] != "window"
    need(burst is None or is_bucket, "a burst")
    need(mode is None or algorithm == "leaky-bucket", "a mode")
    if periods and int(periods) == 0:
        raise Refused("a period of 0")
    if burst and int(burst) == 0:
        raise Unsure("a burst of 0")
    if int(count) == 0:
        return "blocked"
    period = int(periods or 1) * UNITS[unit]
    size = int(burst or count)
    need(size <= 10**12 and int(count) <= 10**30, "too large")
    return limit_of(algorithm, size, int(count), period)


def algorithm_called(name):
    known = name.lower().replace("_", "-")
    known = "sliding-window-log" if known == "moving-window" else known
    need(known in ALGORITHMS, "an algorithm")
    return known


def limit_of(algorithm, size, count, period_ms):
    """A limit, if it is small enough to be exact for certain."""
    is_window = ALGORITHMS[algorithm] == "window"
    if is_window:
        need(period_ms <= LONGEST_WINDOW, "a long window")
    largest = max(size, count)
    bounds = {60_000: 10**9, 3_600_000: 10**7, 30 * 86_400_000: 10**6, LONGEST_WINDOW: 10**4}
    if not any(period_ms <= longest and largest <= most for longest, most in bounds.items()):
        raise Unsure("a limit that may be too large to be exact")
    return ReadLimit(size, (algorithm, period_ms if is_window else None))


def duration(window):
    """A window in ms."""
    if isinstance(window, str):
        parts = re.findall(r"([0-9]+)([A-Za-z]+)", window)
        if "".join(number + unit for number, unit in parts) != window or any(unit not in UNITS for _, unit in parts):
            need(re.search("[0-9]", window), "no window")
            raise Unsure("another notation")
        found = sum(int(number) * UNITS[unit] for number, unit in parts)
    else:
        need(isinstance(window, int | float) and not isinstance(window, bool) and math.isfinite(window), "a window")
        found = window * 1_000
        if window > 0 and found != int(found):
            raise Unsure("a fraction of a millisecond")
    need(found > 0, "a window")
    if found > LONGEST_WINDOW:
        raise Refused("a long window")
    return int(found)


def rate(given):
    """A rate, as a count and its period in ms."""
    if isinstance(given, str):
        found = re.fullmatch(r"([0-9]+)/([0-9]*)([A-Za-z]+)", given)
        if found is None or found[3] not in UNITS:
            need(re.search("[0-9]", given), "no rate")
            raise Unsure("another notation")
        need(int(found[1]) > 0 and int(found[2] or 1) > 0, "a rate of 0")
        return int(found[1]), int(found[2] or 1) * UNITS[found[3]]
    need(
        isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given) and given > 0, "a rate"
    )
    if isinstance(given, float) and given * 8 != int(given * 8):
        raise Unsure("a fraction")
    return math.ceil(given), 1_000


# --- what a request meets


class Expected(NamedTuple):
    missing: frozenset = frozenset()
    """The attributes that a rule needs and the request has not, or not as it should be: any of them may be blamed."""
    allowed: bool = True
    is_blocked: bool = False
    layers: tuple = ()
    """Of each rule that decides: its name, its limit and what remains."""
    shadow_denied: frozenset = frozenset()


class ReadPolicy:
    def __init__(self, data):
        fields(data, ["rules"], ["on_error", "shadow", "overrides"])
        if "on_error" in data:
            need(data["on_error"] in ("local", "open", "closed", "raise"), "on_error")
        rules, overrides = data["rules"], data.get("overrides", [])
        need(isinstance(rules, list) and 1 <= len(rules) <= 32, "rules")
        need(isinstance(overrides, list) and len(overrides) <= 10_000, "overrides")
        in_shadow = flag(data)
        self.rules = [read_rule(rule) for rule in rules]
        self.in_shadow = {rule.name for rule in self.rules if rule.shadow or in_shadow}
        names = [rule.name for rule in self.rules]
        need(len(set(names)) == len(names), "a rule is given twice")
        self.overrides = [read_override(override, names) for override in overrides]
        self.used = defaultdict(int)

    def decide(self, attributes, cost):
        known = {known_as(name): str(value) for name, value in attributes.items()}
        blocked, by_key, missing = [], {}, set()
        # A path may be read or be taken as it is written: whatever limits the request in one of these ways does so.
        for rule, limit in [*self.limits(known, matches), *self.limits(known, matches_as_written)]:
            if limit == "blocked":
                blocked.append(rule.name)
            elif limit != "unlimited":
                own = cost_of(rule, known, cost, missing)
                if own != 0:
                    key = (rule.name, *limit.counted_with, *key_of(rule, known, missing))
                    if key not in by_key or limit.limit < by_key[key][1].limit:  # the stricter one
                        by_key[key] = rule.name, limit, key, own
        asked = list(by_key.values())
        if missing:
            return Expected(frozenset(missing))
        if set(blocked) - self.in_shadow:
            return Expected(allowed=False, is_blocked=True, shadow_denied=frozenset(set(blocked) & self.in_shadow))
        return self.count(asked, frozenset(blocked))

    def limits(self, known, match):
        """The rules that apply, each with its limit."""
        rules = [rule for rule in self.rules if meets(rule.when, known, match)]
        effect = next((limits for when, limits in self.overrides if meets(when, known, match)), {})
        by_rule = dict.fromkeys((rule.name for rule in rules), effect) if isinstance(effect, str) else effect
        return [(rule, by_rule.get(rule.name, rule.limit)) for rule in rules]

    def count(self, asked, tried):
        fits = {key: self.used[key] + own <= limit.limit for _, limit, key, own in asked}
        allowed = all(fits[key] for name, _, key, _ in asked if name not in self.in_shadow)
        for _, _, key, own in asked:
            self.used[key] += own if allowed and fits[key] else 0
        layers = [
            (name, limit.limit, max(0, limit.limit - self.used[key]))
            for name, limit, key, _ in asked
            if name not in self.in_shadow
        ]
        denied = {name for name, _, key, _ in asked if name in self.in_shadow and not fits[key]}
        return Expected(allowed=allowed, layers=tuple(layers), shadow_denied=tried | denied)


def cost_of(rule, known, cost, missing):
    if rule.cost is None or isinstance(rule.cost, int):
        return cost if rule.cost is None else rule.cost
    name, default = rule.cost
    if name not in known and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", known.get(name, "")):
        missing.add(name)
        return 1
    return int(known[name])


def key_of(rule, known, missing):
    missing |= {name for name, default in rule.key if default is None and name not in known}
    return [("given", known[name]) if name in known else ("default", default) for name, default in rule.key]


def meets(when, known, match):
    return all(
        name in known and all(any(match(name, each, known[name]) for each in patterns) for patterns in listed)
        for name, listed in when.items()
    )


def matches_as_written(name, pattern, text):
    if name != "path":
        return matches(name, pattern, text)
    patterns = [pattern, pattern[:-2]] if pattern.endswith("/*") and pattern != "/*" else [pattern]
    return any(fits(each, text) for each in patterns)


def matches(name, pattern, text):
    if name == "path":
        pattern, text = path_read(pattern), path_read(text)
        if pattern.endswith("/*") and text == pattern[:-2]:
            return True
    if name == "method":
        pattern, text = pattern.upper(), text.upper()
    network, address = network_of(pattern), address_of(text)
    if network is not None and address is not None:
        return address.version == network.version and address in network
    return fits(pattern, text)


def fits(pattern, text):
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def path_read(path):
    left = []
    for segment in map(str.strip, path.replace("\\", "/").split("/")):
        if segment == "..":
            left = left[:-1]
        elif segment not in ("", "."):
            left.append(segment)
    return "/" + "/".join(left).casefold()


def address_of(text):
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def network_of(text):
    if "/" not in text:
        address = address_of(text)
        return None if address is None else ipaddress.ip_network(address)
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def is_loose_network(text):
    try:
        return "/" in text and ipaddress.ip_network(text, strict=False) is not None
    except ValueError:
        return False
