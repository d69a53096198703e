"""The line of every value in a TOML or JSON text, which the standard library's readers do not report.

The scanner is for texts that those readers accept. In any other text it finds what comes before the syntax error,
which the reader then reports. It takes linear time, and bounds the depth before a reader is tried.
"""

from __future__ import annotations

import contextlib
import json
import re

from ratekeeper.policies.mistakes import InvalidPolicies, Mistake, ValuePath, shown

MAX_DEPTH = 12  # names and indexes on the way to a value; a policy needs 7
_BLANK = re.compile(r"[ \t]*")
_BLANKS = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_KEY = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)')[ \t]*""")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}\n#]+")


class _End(Exception):
    """The scanner does not understand the text any further."""


def lines_of_toml(text: str) -> dict[ValuePath, int]:
    """Return the line of every value, by its place."""
    return _Scanner(text, "=").document()


def lines_of_json(text: str) -> dict[ValuePath, int]:
    """Return the line of every value, by its place; raise InvalidPolicies if a name is given twice."""
    return _Scanner(text, ":").one_value()


class _Scanner:
    def __init__(self, text: str, assigns: str) -> None:
        self._text = text
        self._assigns = assigns  # between a name and its value
        self._at = 0
        self._seen = 0  # up to where lines were counted
        self._line = 1
        self._lines: dict[ValuePath, int] = {}
        self._lengths: dict[ValuePath, int] = {}  # of arrays of tables

    def document(self) -> dict[ValuePath, int]:
        """Scan tables, one after the other."""
        table: ValuePath = ()
        with contextlib.suppress(_End):
            while self._at_more():
                if self._take("[["):
                    place = self._resolved(self._names())
                    index = self._lengths.get(place, 0)
                    self._lengths[place] = index + 1
                    table = self._note((*place, index))
                elif self._take("["):
                    table = self._note(self._resolved(self._names()))
                else:
                    self._assignment(table)
                    continue
                while self._take("]"):
                    pass
        return self._lines

    def one_value(self) -> dict[ValuePath, int]:
        """Scan one value."""
        with contextlib.suppress(_End):
            self._value(())
        return self._lines

    def _at_more(self) -> bool:
        """Skip to what comes next; tell whether anything does."""
        self._skip(_BLANKS)
        return self._at < len(self._text)

    def _assignment(self, table: ValuePath) -> None:
        place = (*table, *self._names())
        self._expect(self._assigns)
        if self._assigns == ":" and place in self._lines:
            raise InvalidPolicies([Mistake(self._line_here(), shown(place), "this name is given twice")])
        self._value(place)

    def _names(self) -> ValuePath:
        """Take a name, or several with dots between them."""
        names: list[str | int] = []
        while True:
            if self._assigns == ":":
                self._skip(_BLANKS)
            found = _KEY.match(self._text, self._at)
            if found is None:
                raise _End
            self._at = found.end()
            names.append(_name(found))
            self._check_depth(tuple(names))
            if self._assigns == ":" or not self._take("."):
                return tuple(names)

    def _resolved(self, names: ValuePath) -> ValuePath:
        """Return the place that a table's names mean: in an array of tables, in its last one."""
        place: ValuePath = ()
        for at, name in enumerate(names, 1):
            place = (*place, name)
            if at < len(names) and place in self._lengths:
                place = (*place, self._lengths[place] - 1)
        return place

    def _value(self, place: ValuePath) -> None:
        self._skip(_BLANKS if self._assigns == ":" else _BLANK)
        self._note(place)
        if self._take("["):
            index = 0
            while not self._ends("]"):
                self._value((*place, index))
                index += 1
        elif self._take("{"):
            while not self._ends("}"):
                self._assignment(place)
        else:
            found = _STRING.match(self._text, self._at) or _BARE.match(self._text, self._at)
            if found is None:
                raise _End
            self._at = found.end()

    def _ends(self, bracket: str) -> bool:
        """Tell whether a list or a table ends here, past a comma."""
        before = self._at
        self._skip(_BLANKS)
        if self._take(","):
            self._skip(_BLANKS)
        elif self._text[before - 1 : before] not in ("[", "{") and not self._text.startswith(bracket, self._at):
            raise _End
        return self._take(bracket)

    def _note(self, place: ValuePath) -> ValuePath:
        self._check_depth(place)
        line = self._line_here()
        for length in range(len(place), -1, -1):  # a table may be named only with another that is in it
            if self._lines.setdefault(place[:length], line) != line:
                break
        return place

    def _check_depth(self, place: ValuePath) -> None:
        if len(place) > MAX_DEPTH:
            where = shown(place[:4])
            raise InvalidPolicies([Mistake(self._line_here(), where, f"nested more than {MAX_DEPTH} levels deep")])

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._seen, self._at)
        self._seen = self._at
        return self._line

    def _skip(self, blanks: re.Pattern[str]) -> None:
        found = blanks.match(self._text, self._at)
        assert found is not None  # noqa: S101 - it matches nothing, too
        self._at = found.end()

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _expect(self, text: str) -> None:
        self._skip(_BLANKS if self._assigns == ":" else _BLANK)
        if not self._take(text):
            raise _End


def _name(found: re.Match[str]) -> str:
    bare, quoted, literal = found.groups()
    if quoted is not None and "\\" in quoted:
        try:
            return str(json.loads(f'"{quoted}"'))
        except ValueError:  # an escape of TOML alone
            return quoted
    return next(each for each in (bare, quoted, literal) if each is not None)
