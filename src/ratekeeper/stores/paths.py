"""Which file a SqliteStore uses, given a path or a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ratekeeper.errors import InvalidRule
from ratekeeper.rates import show
from ratekeeper.stores.safe_urls import safe

_FORM = "sqlite:///path/to/limits.db"


def checked(path: Any) -> str:
    """Return the absolute path of the file, so that it stays the same if the working directory changes."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be a str or a path, not {show(path)}")
    text = str(os.fspath(path))
    if text == ":memory:":
        raise InvalidRule("path ':memory:' is not a file; for a store in memory use MemoryStore() or 'memory://'")
    if not text or "\0" in text:
        raise InvalidRule(f"path must name a file, not {show(path)}")
    return str(Path(text).absolute())


def path_of(url: str) -> str:
    """Return the path that a URL names: what follows sqlite://, which is always an absolute path."""
    host, slash, path = url.partition("://")[2].partition("/")
    if host == ":memory:" or path == ":memory:":
        raise InvalidRule(f"store {show(safe(url))} is not a file; for a store in memory use 'memory://'")
    if host:
        raise InvalidRule(f"store {show(safe(url))} names a host, but a file has none; write {_FORM}")
    if "?" in path or "#" in path:
        raise InvalidRule(
            f"store {show(safe(url))} has options, but a file takes none; in a path write %3F for ? and %23 for #"
        )
    path = unquote(path, errors="surrogateescape")
    if not path.strip("/") or path.endswith("/"):
        raise InvalidRule(f"store {show(safe(url))} does not name a file; write {_FORM}")
    if "/" not in path:
        raise InvalidRule(
            f"store {show(safe(url))} names a file in the root directory, because the path in a URL is absolute; "
            f"write {_FORM}, or SqliteStore({path!r}) for one in the working directory"
        )
    return slash + path.lstrip("/")
