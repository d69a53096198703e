"""Drills that are too long for the tests: each breaks something on purpose and counts what comes of it."""

import sys


def progress(drill: str, text: str) -> None:
    """Say how far a drill has come, where somebody is looking."""
    if sys.stderr.isatty():
        print(f"{drill:<13} {text}\x1b[K", end="\r", flush=True, file=sys.stderr)
