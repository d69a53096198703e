"""Drills that are too long for the tests: each breaks something on purpose and counts what comes of it."""
