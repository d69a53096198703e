"""Drills: each breaks something on purpose and checks what callers get. `make torture` runs them in full."""

import sys


def progress(drill: str, text: str) -> None:
    """Show the progress of a drill on a terminal."""
    if sys.stderr.isatty():
        print(f"{drill:<13} {text}\x1b[K", end="\r", flush=True, file=sys.stderr)
