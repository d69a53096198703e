"""Keys as hashes, where people see them who need not know whose they are."""

from __future__ import annotations

import hashlib
import os

from ratekeeper.stores.names import encoded
from ratekeeper.stores.protocol import Key

_SECRET = os.urandom(16)  # workers are forked from the process that makes it, so they agree


def hashed(key: Key) -> str:
    """Return what stands for a key as long as the service runs. Nobody can find the key by trying all there may be."""
    return hashlib.blake2b(encoded(key), key=_SECRET, digest_size=8).hexdigest()
