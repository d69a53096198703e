"""Who is signed in: the id of a user object, whichever library made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IDS = ("identity", "id", "user_id", "sub", "username", "display_name")
"""Where the id is looked for; the first one that a user has counts, so that users of one kind never collide."""


def user_id(user: Any) -> str | None:
    """Return the id of a user; None if nobody is signed in."""
    if user is None or isinstance(user, str):
        return user or None
    if isinstance(user, int) and not isinstance(user, bool):
        return str(user)
    if not getattr(user, "is_authenticated", True):
        return None
    for name in _IDS:
        try:
            found = user[name] if isinstance(user, Mapping) else getattr(user, name)
        except (AttributeError, KeyError, NotImplementedError):  # Starlette's users need not have an identity
            continue
        if not callable(found):
            return None if found is None else str(found)
    raise TypeError(
        f"cannot tell users of the type {type(user).__name__} apart: they have none of {', '.join(_IDS)}; "
        "write a key function instead of by_user(), such as key=lambda request: f'user:{request.state.user.number}'"
    )
