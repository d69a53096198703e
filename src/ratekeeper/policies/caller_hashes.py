"""The callers of a policy: a policy file names them by hashes of their tokens, and so has no secrets in it."""

from __future__ import annotations

import re

_HASH = re.compile(r"sha256:[0-9a-f]{64}")
PATTERN = f"^{_HASH.pattern}$"


def caller_hash(token: bytes) -> str:
    """Return what a policy file says of a token. A token must be random, as those of `ratekeeper token` are."""
    import hashlib

    return f"sha256:{hashlib.sha256(token).hexdigest()}"


def is_caller_hash(text: object) -> bool:
    """Tell whether this is the hash of a token."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None
