"""Paths, and the patterns of routes: which paths are the same to an application, however they are written.

Servers, frameworks and file systems read many spellings as one path: Starlette ignores a newline at the end, Werkzeug
repeated slashes, a static file is found past `/./` and in upper case. A limit has to apply to each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show

PathTest = Callable[[str], bool]

_NORMAL = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_~.-]*)+")
_PARAMETER = re.compile(r"\{[^{}/:]+(:[a-z]+)?\}")
_OPEN_END = re.compile(r"(?<=/)\{[^{}/:]+:path\}$")  # means the same as a "*"


def normalized(path: str) -> str:
    """Return the path without everything that some application ignores, except its case.

    >>> normalized("//a/./b/../c/%0A".replace("%0A", chr(10)))
    '/a/c'
    """
    if _NORMAL.fullmatch(path):  # nearly always
        return path
    segments: list[str] = []
    for each in path.replace("\\", "/").split("/"):
        segment = each.strip()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


def below(root: str, path: str) -> str:
    """Return a path as an application mounted at `root` sees it, if the path begins with that."""
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        return path[len(root) :]
    return path


def exact_test(pattern: str) -> PathTest:
    """Return a function that tells whether a path matches this pattern as it is written."""
    pattern = _OPEN_END.sub("*", pattern)
    return _test(pattern.removesuffix("*"), is_open=pattern.endswith("*"))


def lenient_test(pattern: str) -> PathTest:
    """Return a function that tells whether a path, normalized and casefolded, may be read as matching this pattern."""
    pattern = _OPEN_END.sub("*", pattern)
    start = pattern.removesuffix("*")
    is_open = start != pattern
    begins = normalized(start).casefold()
    if not is_open or not start.endswith("/") or begins == "/":
        return _test(begins, is_open=is_open)
    itself, under = _test(begins), _test(f"{begins}/", is_open=True)
    return lambda path: itself(path) or under(path)


def _test(start: str, *, is_open: bool = False) -> PathTest:
    """Return a function that tells whether a path is this, or begins with it; `{name}` matches one segment."""
    if "{" not in start and "}" not in start:
        return (lambda path: path.startswith(start)) if is_open else (lambda path: path == start)
    parts = []
    end = 0
    for parameter in _PARAMETER.finditer(start):
        parts += [start[end : parameter.start()], ".*" if parameter[1] == ":path" else "[^/]+"]
        end = parameter.end()
    parts.append(start[end:])
    if any("{" in part or "}" in part for part in parts[::2]):
        raise InvalidRule(f"cannot read the path {show(start)}: write a parameter as '{{name}}' or '{{name:path}}'")
    parts[::2] = map(re.escape, parts[::2])
    compiled = re.compile("".join(parts) + (".*" if is_open else ""), re.DOTALL)
    return lambda path: compiled.fullmatch(path) is not None
