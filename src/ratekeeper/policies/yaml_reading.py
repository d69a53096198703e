"""A reader of the part of YAML that a policy file needs: mappings, lists, texts, numbers and booleans.

Aliases, anchors, tags and merge keys are refused, so a text means no more than its own length. PyYAML only splits the
text into events, which takes linear time; nothing in it is constructed by its name.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from ratekeeper.policies.mistakes import InvalidPolicies, Mistake, ValuePath, shown
from ratekeeper.policies.text_lines import MAX_DEPTH

_INTEGER = re.compile(r"0|[-+]?[1-9][0-9_]{0,30}")
_NUMBER = re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{1,30}")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("", "~", "null"), None),
}


def read_yaml(text: str) -> tuple[Any, dict[ValuePath, int]]:
    """Return the data, and the line of every value by its place; raise InvalidPolicies with the first mistake."""
    try:
        import yaml
    except ImportError:
        reason = "YAML needs PyYAML: pip install 'ratekeeper[policies]', or write TOML or JSON"
        raise InvalidPolicies([Mistake(None, "", reason)]) from None
    reader = _Builder()
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            reader.handle(type(event).__name__.removesuffix("Event"), event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "this is not YAML"
        raise InvalidPolicies([Mistake(mark and mark.line + 1, "", f"{reason}")]) from None
    return reader.data, reader.lines


class _Builder:
    """Builds the data from events, without recursion."""

    def __init__(self) -> None:
        self.data: Any = None
        self.lines: dict[ValuePath, int] = {}
        self._documents = 0
        self._open: list[tuple[ValuePath, dict[str, Any] | list[Any]]] = []
        self._key: list[str | None] = []  # of each open mapping, the key whose value comes next

    def handle(self, kind: str, event: Any) -> None:
        line = event.start_mark.line + 1
        if kind == "Alias" or getattr(event, "anchor", None) is not None:
            self._refuse(
                line, "anchors (&) and aliases (*) are not supported: write the value itself, in quotes if it is a text"
            )
        if kind in ("MappingEnd", "SequenceEnd"):
            self._open.pop()
            self._key.pop()
        elif kind == "DocumentStart":
            self._documents += 1
            if self._documents > 1:
                self._refuse(line, "a file is one document: remove the '---'")
        elif kind in ("MappingStart", "SequenceStart", "Scalar"):
            self._value(kind, event, line)

    def _value(self, kind: str, event: Any, line: int) -> None:
        if event.tag is not None and event.tag != "!":
            self._refuse(line, f"tags such as {event.tag[:40]} are not supported: remove it")
        expects_key = bool(self._open) and isinstance(self._open[-1][1], dict) and self._key[-1] is None
        if expects_key:
            self._take_key(kind, event, line)
            return
        place = self._place()
        self.lines.setdefault(place, line)
        if kind == "Scalar":
            self._put(_plain(event.value) if event.implicit[0] else event.value)
            return
        if len(place) >= MAX_DEPTH:
            self._refuse(line, f"nested more than {MAX_DEPTH} levels deep")
        container: dict[str, Any] | list[Any] = {} if kind == "MappingStart" else []
        self._put(container)
        self._open.append((place, container))
        self._key.append(None)

    def _take_key(self, kind: str, event: Any, line: int) -> None:
        place, container = self._open[-1]
        if kind != "Scalar":
            self._refuse(line, "a name must be a text")
        if event.value == "<<" and event.implicit[0]:
            self._refuse(line, "merge keys (<<) are not supported: write out the fields")
        if event.value in container:
            raise InvalidPolicies([Mistake(line, shown((*place, event.value)), "this name is given twice")])
        self.lines[(*place, event.value)] = line
        self._key[-1] = event.value

    def _place(self) -> ValuePath:
        if not self._open:
            return ()
        place, container = self._open[-1]
        key = self._key[-1]
        return (*place, len(container) if key is None else key)

    def _put(self, value: Any) -> None:
        if not self._open:
            self.data = value
            return
        container = self._open[-1][1]
        if isinstance(container, list):
            container.append(value)
        else:
            container[str(self._key[-1])] = value
            self._key[-1] = None

    def _refuse(self, line: int, reason: str) -> NoReturn:
        place = self._open[-1][0] if self._open else ()
        raise InvalidPolicies([Mistake(line, shown(place), reason)])


def _plain(text: str) -> Any:
    """Return what a text without quotes means; what is no number or word of YAML stays a text."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return _WORDS.get(text.lower(), text)
