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


def is_usual(path: str) -> bool:
    """Tell whether all applications read a path as it is written."""
    return folded(normalized(path)) == path


def folded(path: str) -> str:
    """Return the path with one letter for all that an application may take for the same.

    Patterns that ignore case take more letters for an i than casefold does.

    >>> folded("/L\u0130ST") == folded("/l\u0131st") == folded("/list")
    True
    """
    if path.isascii():  # nearly always
        return path.lower()
    return path.upper().casefold().replace("i\u0307", "i")


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
    """Return a function that tells whether a path, normalized and folded, may be read as matching this pattern."""
    pattern = _OPEN_END.sub("*", pattern)
    start = pattern.removesuffix("*")
    is_open = start != pattern
    begins = folded(normalized(start))
    if not is_open or not start.endswith("/") or begins == "/":
        return _test(begins, is_open=is_open)
    itself, under = _test(begins), _test(f"{begins}/", is_open=True)
    return lambda path: itself(path) or under(path)


def _test(start: str, *, is_open: bool = False) -> PathTest:
    """Return a function that tells whether a path is this, or begins with it; `{name}` stands for one segment."""
    if "{" not in start and "}" not in start:
        return (lambda path: path.startswith(start)) if is_open else (lambda path: path == start)
    parameters = list(_PARAMETER.finditer(start))
    begins = [0, *(parameter.end() for parameter in parameters)]
    ends = [*(parameter.start() for parameter in parameters), len(start)]
    texts = [start[begin:end] for begin, end in zip(begins, ends, strict=True)]
    if any("{" in text or "}" in text for text in texts):
        raise InvalidRule(f"cannot read the path {show(start)}: write a parameter as '{{name}}' or '{{name:path}}'")
    if sum(parameter[1] == ":path" for parameter in parameters) > 1:
        raise InvalidRule(f"the path {show(start)} may have only one '{{name:path}}'")
    compiled = re.compile(_regex(texts, [parameter[1] == ":path" for parameter in parameters], is_open), re.DOTALL)
    return lambda path: compiled.fullmatch(path) is not None


def _regex(texts: list[str], are_paths: list[bool], is_open: bool) -> str:
    """Return the regular expression of a pattern: texts, with a parameter between each two. It takes linear time."""
    parts = [re.escape(texts[0])]
    groups = 0
    for index, is_path in enumerate(are_paths, 1):
        text = re.escape(texts[index])
        if "/" in text or index == len(are_paths):
            parts += [".*" if is_path else "[^/]+", text]
        else:  # of several parameters in one segment, each is as short as can be, and the last one takes the rest
            groups += 1
            parts.append(f"{'(?:.*/)?' if is_path else ''}(?=([^/]{'*' if is_path else '+'}?{text}))\\{groups}")
    return "".join(parts) + (".*" if is_open else "")
