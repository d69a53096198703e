"""From plain data to policies: every value is checked, and all mistakes are found at once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from ratekeeper import arguments
from ratekeeper.algorithms import ALGORITHMS, BY_NAME, Rule
from ratekeeper.errors import InvalidRule
from ratekeeper.fallback import OnError
from ratekeeper.http.chosen_rules import chosen
from ratekeeper.policies.caller_hashes import is_caller_hash
from ratekeeper.policies.conditions import When
from ratekeeper.policies.documents import Document
from ratekeeper.policies.mistakes import InvalidPolicies, Mistake, ValuePath, shown
from ratekeeper.policies.model import ALWAYS, Effect, Override, Policy, PolicyLimit, PolicyRule, StoreOptions, Word
from ratekeeper.policies.templates import CostTemplate, KeyTemplate
from ratekeeper.rates import UNITS, show
from ratekeeper.rules import blamed, from_fields, parse
from ratekeeper.spelling import nearest

MAX_POLICIES = 1_000
MAX_RULES = 32
MAX_OVERRIDES = 10_000
MAX_CALLERS = 1_000
MAX_PATTERNS = 10_000  # of one attribute
MAX_ATTRIBUTES = 16  # of one `when`
MAX_CHARACTERS = 1_024  # of a name of an attribute or a pattern
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
POLICY_FIELDS = ("on_error", "local_share", "lease", "callers", "shadow", "rules", "overrides")
RULE_FIELDS = ("name", "limit", "key", "when", "cost", "shadow")
OVERRIDE_FIELDS = ("when", "limits")
LIMIT_FIELDS = tuple(
    dict.fromkeys(["algorithm", "limit", "window", *(field.name for each in ALGORITHMS for field in each.fields)])
)
WORDS: tuple[Word, ...] = get_args(Word)
_VOCABULARY = [*BY_NAME, *UNITS, *WORDS, "burst", "per", "policing", "shaping"]
_MISSING = object()


def build(document: Document) -> dict[str, Policy]:
    """Return the policies by name; raise InvalidPolicies with all mistakes."""
    reader = Reader(document)
    policies = reader.policies(document.data)
    reader.raise_mistakes()
    return policies


class Reader:
    """Reads values of one document, and collects mistakes."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._mistakes: list[Mistake] = []

    def raise_mistakes(self) -> None:
        """Raise InvalidPolicies if there are mistakes."""
        if self._mistakes:
            raise InvalidPolicies(self._mistakes, self._document.source)

    def policies(self, data: Any) -> dict[str, Policy]:
        table = self._table((), data, ("policies", "$schema"), "policies")
        given = table.get("policies", _MISSING)
        if given is _MISSING or not isinstance(given, dict):
            if isinstance(data, dict):
                self._wrong(("policies",), given, "a table of policies, as in [policies.api]")
            return {}
        if not 1 <= len(given) <= MAX_POLICIES:
            self._fail(("policies",), f"has {len(given)} policies; from 1 to {MAX_POLICIES} are allowed")
        policies = {}
        for name, content in list(given.items())[:MAX_POLICIES]:
            place: ValuePath = ("policies", name)
            self._check_name(place, name)
            policies[name] = self._policy(place, name, content)
        return policies

    def _policy(self, place: ValuePath, name: str, data: Any) -> Policy:
        table = self._table(place, data, POLICY_FIELDS, "a policy")
        options = self._store_options(place, table)
        shadow = self._flag(place, table)
        rules = self._rules((*place, "rules"), table.get("rules", _MISSING)) if isinstance(data, dict) else []
        given = self._list((*place, "overrides"), table.get("overrides", []), MAX_OVERRIDES)
        names = [rule.name for rule in rules]
        overrides = [self.override((*place, "overrides", at), each, names) for at, each in enumerate(given)]
        callers = self._callers((*place, "callers"), table.get("callers", _MISSING))
        policy = Policy(name, tuple(rules), tuple(overrides), options, shadow, callers)
        if options.lease is not None and not policy.may_lease:
            self._fail((*place, "lease"), "needs a policy with one rule, which does not shape")
        return policy

    def _callers(self, place: ValuePath, data: Any) -> frozenset[str]:
        if data is _MISSING:
            return frozenset()
        given = self._list(place, data, MAX_CALLERS)
        if given == []:
            self._fail(place, "names nobody; to let everybody call, leave it out")
        for at, each in enumerate(given):
            if not is_caller_hash(each):  # it may be the token itself, which is not for the log
                self._fail((*place, at), "must be the hash of a token, as ratekeeper token prints it")
        return frozenset(each for each in given if isinstance(each, str))

    def _store_options(self, place: ValuePath, table: Mapping[str, Any]) -> StoreOptions:
        on_error = table.get("on_error")
        if "on_error" in table and on_error not in get_args(OnError):
            known = ", ".join(get_args(OnError))
            self._fail(
                (*place, "on_error"), f"must be one of {known}, not {show(on_error)}", on_error, get_args(OnError)
            )
        given: dict[str, Any] = {}
        for name, check in (("local_share", arguments.check_share), ("lease", arguments.check_lease_seconds)):
            if name in table:
                try:
                    given[name] = check(table[name])
                except (InvalidRule, TypeError) as error:
                    self._fail((*place, name), str(error).removeprefix(f"{name} "))
        return StoreOptions(on_error, **given)

    def _rules(self, place: ValuePath, data: Any) -> list[PolicyRule]:
        if data is _MISSING or data == []:
            self._fail(place, "a policy needs at least one rule")
            return []
        rules: list[PolicyRule] = []
        for at, each in enumerate(self._list(place, data, MAX_RULES)):
            rule = self._rule((*place, at), each)
            if rule.name and any(rule.name == other.name for other in rules):
                self._fail((*place, at, "name"), f"{show(rule.name)} is given twice; each rule needs a name of its own")
            rules.append(rule)
        return rules

    def _rule(self, place: ValuePath, data: Any) -> PolicyRule:
        table = self._table(place, data, RULE_FIELDS, "a rule")
        name, key, cost = (table.get(field, _MISSING) for field in ("name", "key", "cost"))
        if isinstance(data, dict):
            for field in ("name", "limit", "key"):
                if field not in table:
                    self._fail((*place, field), _NEEDS[field])
        if isinstance(name, str):
            self._check_name((*place, "name"), name)
        elif name is not _MISSING:
            self._wrong((*place, "name"), name, "a text")
        limit = self.limit((*place, "limit"), table["limit"]) if "limit" in table else WORDS[1]
        return PolicyRule(
            name if isinstance(name, str) else "",
            limit,
            self._key((*place, "key"), key),
            self.when((*place, "when"), table["when"]) if "when" in table else ALWAYS,
            self._cost((*place, "cost"), cost),
            self._flag(place, table),
        )

    def _key(self, place: ValuePath, key: Any) -> KeyTemplate:
        if isinstance(key, str):
            try:
                return KeyTemplate.read(key)
            except InvalidRule as error:
                self._fail(place, str(error))
        elif key is not _MISSING:
            self._wrong(place, key, "a text such as '{user}', '{tenant}/{user}' or 'all'")
        return KeyTemplate("", ())

    def _cost(self, place: ValuePath, cost: Any) -> CostTemplate | None:
        if cost is _MISSING:
            return None
        if isinstance(cost, bool) or not isinstance(cost, int | str):
            self._wrong(place, cost, "a whole number, or an attribute such as '{tokens}'")
            return None
        try:
            return CostTemplate.read(cost)
        except InvalidRule as error:
            self._fail(place, str(error))
            return None

    def override(self, place: ValuePath, data: Any, rules: Iterable[str]) -> Override:
        """Read an override of a policy with these rules."""
        table = self._table(place, data, OVERRIDE_FIELDS, "an override")
        if isinstance(data, dict) and "when" not in table:
            self._fail((*place, "when"), "an override needs a `when`; to match every request, write when = {}")
        when = self.when((*place, "when"), table["when"]) if "when" in table else ALWAYS
        limits: Effect = "blocked"
        if isinstance(data, dict):
            limits = self.limits((*place, "limits"), table.get("limits", _MISSING), list(rules))
        return Override(when, limits)

    def limits(self, place: ValuePath, data: Any, rules: list[str]) -> Effect:
        """Read what an override puts in place of the limits of these rules."""
        if isinstance(data, str):
            word = data.strip().lower()
            if word in WORDS:
                return WORDS[WORDS.index(word)]
            reason = f'must be "unlimited", "blocked" or a limit by rule, as in {{ user = {show(data)} }}'
            self._fail(place, reason, data, WORDS)
            return "blocked"
        if not isinstance(data, dict) or not data:
            self._wrong(place, data, '"unlimited", "blocked" or limits by rule')
            return "blocked"
        limits: dict[str, PolicyLimit] = {}
        for name, limit in data.items():
            if name not in rules:
                known = ", ".join(rules)
                self._fail((*place, name), f"is not a rule of this policy; its rules are {known}", name, rules)
            limits[name] = self.limit((*place, name), limit)
        return limits

    def limit(self, place: ValuePath, data: Any) -> PolicyLimit:
        """Read a limit: a text, or the fields of a rule."""
        if isinstance(data, str):
            return self._limit_text(place, data)
        if not isinstance(data, dict):
            self._wrong(place, data, "a text such as '100/minute', or the fields of a rule")
            return "blocked"
        table = self._table(place, data, LIMIT_FIELDS, "a limit")
        given = {name: value for name, value in table.items() if name in LIMIT_FIELDS}
        if len(given) < len(table):
            return "blocked"  # the mistake is the other field
        algorithm = given.pop("algorithm", None)
        try:
            return from_fields(algorithm, given)
        except (InvalidRule, TypeError) as error:
            field = blamed(error, given) or ("algorithm" if "algorithm" in table else None)
            where = place if field is None else (*place, field)
            known = BY_NAME if field == "algorithm" else ()
            self._fail(where, str(error).removeprefix(f"{field} "), given.get(str(field), algorithm), known)
        return "blocked"

    def _limit_text(self, place: ValuePath, text: str) -> PolicyLimit:
        choice = chosen(text)
        if choice.is_blocked:
            return "blocked"
        if choice.rules is None:
            return "unlimited"
        try:
            rules: tuple[Rule, ...] = parse(choice.rules)
        except InvalidRule as error:
            unknown = [word for word in re.findall(r"[A-Za-z_-]+", text[:200]) if word.lower() not in _VOCABULARY]
            self._fail(place, str(error), unknown[0] if unknown else None, _VOCABULARY)
            return "blocked"
        if len(rules) > 1:
            self._fail(place, f"has {len(rules)} limits; make each a rule with a name of its own")
        return rules[0]

    def when(self, place: ValuePath, data: Any) -> When:
        """Read conditions."""
        if not isinstance(data, dict):
            self._wrong(place, data, 'conditions by attribute, as in { plan = "pro" }')
            return ALWAYS
        if len(data) > MAX_ATTRIBUTES:
            self._fail(place, f"names {len(data)} attributes; at most {MAX_ATTRIBUTES} are allowed")
            return ALWAYS
        return When({name: self._patterns((*place, name), patterns) for name, patterns in data.items()})

    def _patterns(self, place: ValuePath, data: Any) -> tuple[str, ...]:
        name = place[-1]
        if not name or len(str(name)) > MAX_CHARACTERS:
            self._fail(place, f"the name of an attribute must have from 1 to {MAX_CHARACTERS} characters")
        listed = data if isinstance(data, list) else [data]
        if not listed:
            self._fail(place, "an empty list matches nothing; remove the attribute, or the whole entry")
        if len(listed) > MAX_PATTERNS:
            self._fail(place, f"has {len(listed)} patterns; at most {MAX_PATTERNS} are allowed")
        patterns = []
        for at, each in enumerate(listed[:MAX_PATTERNS]):
            where = (*place, at) if isinstance(data, list) else place
            if isinstance(each, bool) or not isinstance(each, str | int):
                hint = f'; write "{str(each).lower()}" in quotes' if isinstance(each, bool) else ""
                self._fail(where, f"must be a text, a whole number or a list of these, not {show(each)}{hint}")
            elif (each.bit_length() // 3 if isinstance(each, int) else len(each)) > MAX_CHARACTERS:
                self._fail(where, f"a pattern must have at most {MAX_CHARACTERS} characters")
            else:
                self._check_network(where, str(each))
                patterns.append(str(each))
        return tuple(patterns)

    def _check_network(self, place: ValuePath, text: str) -> None:
        """Refuse what looks like a network but has host bits set, and would match no address."""
        if "/" not in text or not (text[0].isalnum() or text[0] == ":"):
            return
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            return
        address = ipaddress.ip_address(text.partition("/")[0])
        if address != network.network_address:
            self._fail(place, f"{show(text)} has host bits set", str(network), [str(network)])

    def _flag(self, place: ValuePath, table: Mapping[str, Any]) -> bool:
        flag = table.get("shadow", False)
        if not isinstance(flag, bool):
            self._wrong((*place, "shadow"), flag, "true or false")
        return flag is True

    def _check_name(self, place: ValuePath, name: str) -> None:
        if not NAME.fullmatch(name):
            self._fail(place, f"a name must have from 1 to 64 letters, digits, '_', '.' or '-', not {show(name)}")

    def _table(self, place: ValuePath, data: Any, fields: Iterable[str], what: str) -> Mapping[str, Any]:
        """Return a table, or an empty one if the value is not a table."""
        if not isinstance(data, dict):
            self._wrong(place, data, f"a table, {what}")
            return {}
        for name in data:
            if name not in fields:
                known = ", ".join(fields)
                self._fail((*place, name), f"is not a field of {what}; its fields are {known}", name, fields)
        return data

    def _list(self, place: ValuePath, data: Any, most: int) -> list[Any]:
        if not isinstance(data, list):
            hint = f" with [[{shown(place)}]]" if self._document.format == "toml" else ""
            self._wrong(place, data, f"a list{hint}")
            return []
        if len(data) > most:
            self._fail(place, f"has {len(data)} entries; at most {most} are allowed")
        return data[:most]

    def _wrong(self, place: ValuePath, value: Any, expected: str) -> None:
        self._fail(
            place,
            f"is missing; it must be {expected}" if value is _MISSING else f"must be {expected}, not {show(value)}",
        )

    def _fail(self, place: ValuePath, reason: str, word: object = None, known: Iterable[str] = ()) -> None:
        suggestion = nearest(word, known) if word is not None else None
        self._mistakes.append(Mistake(self._document.line(place), shown(place), reason, suggestion))


_NEEDS = {
    "name": "a rule needs a name",
    "limit": "a rule needs a limit, such as '100/minute'",
    "key": "a rule needs a key: '{user}' for each user, 'all' for one key for all requests",
}
