"""The browser on this machine. A missing one is a failure that says how to get one."""

from __future__ import annotations

import shutil

ADVICE = (
    "no Chromium was found; on Debian: apt-get install chromium, elsewhere put chromium or google-chrome on the PATH"
)


def program() -> str:
    """Return the browser's path."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise AssertionError(ADVICE)
