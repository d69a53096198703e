"""Policy files as plain data, with the line of every value: TOML, YAML or JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ratekeeper.errors import InvalidRule
from ratekeeper.policies.mistakes import InvalidPolicies, Mistake, ValuePath
from ratekeeper.policies.text_lines import lines_of_json, lines_of_toml
from ratekeeper.policies.yaml_reading import read_yaml
from ratekeeper.rates import show

Format = Literal["toml", "yaml", "json"]
MAX_BYTES = 4 * 1024 * 1024
_SUFFIXES: dict[str, Format] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_LOOKS_LIKE_TOML = re.compile(r"""\[|[A-Za-z0-9_."' -]+=""")


class Document(NamedTuple):
    """A text and the data in it."""

    text: str
    format: Format
    data: Any
    lines: dict[ValuePath, int]
    """The line of each value, by its place."""
    path: Path | None = None
    """The file that it was read from."""

    @property
    def source(self) -> str:
        """Where it comes from, for messages."""
        return "" if self.path is None else str(self.path)

    def line(self, place: ValuePath) -> int | None:
        """Return the line of a value; of one that is missing, the line of the table where it should be."""
        for length in range(len(place), -1, -1):
            line = self.lines.get(place[:length])
            if line is not None:
                return line
        return None


def read(path_or_text: str | os.PathLike[str], format: Format | None = None) -> Document:  # noqa: A002 - the usual word
    """Read a file or a text. Without `format`, the file's suffix or the text itself tells."""
    if format is not None and format not in get_args(Format):
        raise InvalidRule(f"format must be 'toml', 'yaml' or 'json', not {show(format)}")
    if isinstance(path_or_text, os.PathLike) or (isinstance(path_or_text, str) and _is_path(path_or_text, format)):
        path = Path(path_or_text)
        return read_text(_content(path), format or _SUFFIXES.get(path.suffix.lower()), path)
    if not isinstance(path_or_text, str):
        raise TypeError(f"policies must be a path or a text, not {show(path_or_text)}")
    return read_text(path_or_text, format)


def read_text(text: str, format: Format | None = None, path: Path | None = None) -> Document:  # noqa: A002
    """Read a text."""
    source = "" if path is None else str(path)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise InvalidPolicies([Mistake(line, "", "this is not UTF-8")], source) from None
    if size > MAX_BYTES:
        raise InvalidPolicies([Mistake(None, "", f"larger than {MAX_BYTES // 1024 // 1024} MiB")], source)
    text = text.removeprefix("\ufeff")
    known = format or _guessed(text)
    try:
        data, lines = _READERS[known](text)
    except InvalidPolicies as error:
        raise InvalidPolicies(error.mistakes, source) from None
    return Document(text, known, data, lines, path)


def _is_path(text: str, known: Format | None) -> bool:
    """Tell whether this is a path: that of a file, or nothing that could be a text."""
    if "\n" in text or "\0" in text or not text:
        return False
    try:
        return Path(text).exists() or (known is None and not re.search(r"[{=:\[]", text))
    except OSError:  # too long for a path
        return False


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidPolicies([Mistake(None, "", f"cannot be read: {error.strerror}")], str(path)) from None
    return as_text(content, str(path))


def as_text(content: bytes, source: str = "") -> str:
    """Return the text of a file's content; raise InvalidPolicies if it is none."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if len(content) > MAX_BYTES:
            return " " * len(content)  # it may have been cut within a character
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidPolicies([Mistake(line, "", "this is not UTF-8")], source) from None


def _guessed(text: str) -> Format:
    blank = _BLANK_LINES.match(text)
    begins = text[blank.end() if blank else 0 :][:200]
    if begins.startswith("{"):
        return "json"
    return "toml" if not begins or _LOOKS_LIKE_TOML.match(begins) else "yaml"


def _read_toml(text: str) -> tuple[Any, dict[ValuePath, int]]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]
        except ImportError:
            reason = "TOML on Python 3.10 needs tomli: pip install 'ratekeeper[policies]', or write JSON"
            raise InvalidPolicies([Mistake(None, "", reason)]) from None
    lines = lines_of_toml(text)  # first: it bounds the depth
    try:
        return tomllib.loads(text), lines
    except RecursionError:
        raise InvalidPolicies([Mistake(None, "", "nested too deeply")]) from None
    except ValueError as error:
        raise _syntax_error(str(error)) from None


def _read_json(text: str) -> tuple[Any, dict[ValuePath, int]]:
    lines = lines_of_json(text)
    try:
        return json.loads(text, parse_constant=_no_constant), lines
    except RecursionError:
        raise InvalidPolicies([Mistake(None, "", "nested too deeply")]) from None
    except json.JSONDecodeError as error:
        raise InvalidPolicies([Mistake(error.lineno, "", error.msg)]) from None
    except ValueError as error:
        raise InvalidPolicies([Mistake(None, "", str(error))]) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _syntax_error(message: str) -> InvalidPolicies:
    """Make the error from a message of the TOML reader, which has the line in it."""
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if found is None:
        return InvalidPolicies([Mistake(None, "", message)])
    line = int(found[1]) if found[1] else None
    return InvalidPolicies([Mistake(line, "", message[: found.start()])])


_READERS: dict[Format, Callable[[str], tuple[Any, dict[ValuePath, int]]]] = {
    "toml": _read_toml,
    "yaml": read_yaml,
    "json": _read_json,
}
