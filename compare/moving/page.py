"""Reads the patterns of docs/moving.md.

A row of a table has their line in its first cell and ours in the second, with steps and answers in a comment; of
several pieces of code in a cell, the first is run. A pattern of several lines is a comment, and below it two blocks of
code. Where the peer answers something else, and this is meant to be so, the text says why after "differs:".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "moving.md"
THEIRS, OURS = "theirs", "ours"

_SECTION = re.compile(r"^## (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- (?P<steps>.+?): (?P<answers>.+?) -->")
_ROW = re.compile(r"^\| (?P<theirs>`.*?) \| (?P<ours>.*) \|$", re.MULTILINE)
_PAIR = re.compile(
    r"^(?P<comment><!-- .+? -->)\n(?P<text>(?:(?!```|<!--).*\n)*?)"
    r"```python\n# \S+\n(?P<theirs>(?:(?!```).*\n)*)```\n\n"
    r"```python\n# ratekeeper\n(?P<ours>(?:(?!```).*\n)*)```\n",
    re.MULTILINE,
)
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_DIFFERS = re.compile(r"\bdiffers: (.*?)(?:\.?\s*<!--|\.\n|$)", re.DOTALL)


class Pattern(NamedTuple):
    """One documented usage of a peer, with ours beside it."""

    theirs: str
    ours: str
    steps: str
    """What both are asked, one after the other, as `traffic` describes it."""
    answers: list[str]
    """What ours answers."""
    differs: str
    """Why the peer answers something else; empty if it answers the same."""

    def lines(self, side: str) -> str:
        """Return the lines of a side."""
        return self.theirs if side == THEIRS else self.ours


def patterns(peer: str) -> list[Pattern]:
    """Return the patterns of a peer, in the order of the page."""
    text = sections()[peer]
    found = [(match.start(), _of_pair(match)) for match in _PAIR.finditer(text)]
    found += [(match.start(), _of_row(match)) for match in _ROW.finditer(text) if _COMMENT.search(match["ours"])]
    return [pattern for _, pattern in sorted(found)]


def sections() -> dict[str, str]:
    """Return the sections of the page by the names of the peers."""
    return dict(_SECTION.findall(PAGE.read_text("utf-8")))


def untried(peer: str) -> Iterator[str]:
    """Give the rows that have code of ours, but no steps."""
    for match in _ROW.finditer(sections()[peer]):
        if match["ours"].startswith("`") and not _COMMENT.search(match["ours"]):
            yield match[0]


def _of_row(row: re.Match[str]) -> Pattern:
    theirs, ours = (_CODE.search(row[cell].replace(r"\|", "|")) for cell in ("theirs", "ours"))
    if theirs is None or ours is None:
        raise ValueError(f"a row with steps needs code in both cells: {row[0]}")
    return _pattern(theirs[1], ours[1], row["ours"], row["ours"])


def _of_pair(pair: re.Match[str]) -> Pattern:
    return _pattern(pair["theirs"].rstrip(), pair["ours"].rstrip(), pair["comment"], pair["text"])


def _pattern(theirs: str, ours: str, comment: str, text: str) -> Pattern:
    tried = _COMMENT.search(comment)
    if tried is None:
        raise ValueError(f"a comment must be '<!-- steps: answers -->': {comment}")
    differs = _DIFFERS.search(text)
    return Pattern(theirs, ours, tried["steps"], repeated(tried["answers"]), differs[1] if differs else "")


def repeated(answers: str) -> list[str]:
    """Read answers: "2x 200, 429" is 200 twice, and 429."""
    found = []
    for answer in answers.split(", "):
        count = re.match(r"(\d+)x ", answer)
        found += [answer[count.end() :]] * int(count[1]) if count else [answer]
    return found
