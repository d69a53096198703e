"""Which file a SqliteStore uses: by a path, or by a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show

_FORM = "sqlite:///path/to/limits.db"


def checked(path: Any) -> str:
    """Return the whole path of the file; whoever changes the working directory later keeps it."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be a str or a path, not {show(path)}")
    text = str(os.fspath(path))
    if text == ":memory:":
        raise InvalidRule("path ':memory:' is no file; for a store in memory use MemoryStore() or 'memory://'")
    if not text or "\0" in text:
        raise InvalidRule(f"path must name a file, not {show(path)}")
    return str(Path(text).absolute())


def path_of(url: str) -> str:
    """Return the path that a URL names: what follows sqlite://, which is a whole path and not a relative one."""
    host, slash, path = url.partition("://")[2].partition("/")
    if host == ":memory:" or path == ":memory:":
        raise InvalidRule(f"store {show(url)} is no file; for a store in memory use 'memory://'")
    if host:
        raise InvalidRule(f"store {show(url)} names a host, {show(host)}; a file has none: write {_FORM}")
    if "?" in path or "#" in path:
        raise InvalidRule(f"store {show(url)} has options, and there are none; in a path write %3F for ? and %23 for #")
    path = unquote(path, errors="surrogateescape")
    if not path.strip("/") or path.endswith("/"):
        raise InvalidRule(f"store {show(url)} names no file; write {_FORM}")
    if "/" not in path:
        raise InvalidRule(
            f"store {show(url)} names a file in the root directory, as a URL has the whole path; write {_FORM}, "
            f"or SqliteStore({path!r}) for one in the working directory"
        )
    return slash + path.lstrip("/")
