"""What may be shown of a store's URL, in errors, logs and representations: nothing that may be a secret."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[a-z][a-z+]*", re.IGNORECASE)
_HOST = r"(?:[\w.-]+|\[[0-9a-f:.]+\])?(?::\d{1,5})?"
_HOSTS = rf"{_HOST}(?:,{_HOST})*"
_FILE = r"(?:[\w.-]*|:memory:)(?:/.*)?"
_FORMS = {
    "+cluster": rf"{_HOSTS}(?:/\d*)?",
    "+sentinel": rf"{_HOSTS}(?:/[\w.-]*)?(?:/\d*)?",
    "sqlite": _FILE,
    "unix": _FILE,
}
_ONE = rf"{_HOST}(?:/\d*)?"
_NO_URL = re.compile(r"(?:memory|sqlite|unix|redis|valkey)?:?/*")
HIDDEN = "***"


def safe(url: str) -> str:
    """Show a URL without user, password and options; of one that is not well-formed, show the scheme at most."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url if _NO_URL.fullmatch(url) else HIDDEN
    if not _SCHEME.fullmatch(scheme):
        return url if url == separator else HIDDEN
    login, at, address = rest.rpartition("@")
    address = re.split(r"[?#]", address, maxsplit=1)[0]
    form = next((form for ending, form in _FORMS.items() if scheme.endswith(ending)), _ONE)
    if re.search(r"[/?#]", login) or not re.fullmatch(form, address, re.IGNORECASE):  # where does the login end?
        return f"{scheme}{separator}{HIDDEN}"
    return f"{scheme}{separator}{HIDDEN}@{address}" if at else f"{scheme}{separator}{address}"
