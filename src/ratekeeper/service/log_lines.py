"""The log of the service: lines on standard error, as text or as JSON.

A reader of the log that has stopped keeps nobody waiting: lines are dropped as long as they would block, and the next
one says how many were.
"""

from __future__ import annotations

import json
import logging
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from ratekeeper.subcommands import printable

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
_STDERR = 2
_MAX_TEXT = 3_000  # characters of a message or a traceback; what is longer might block, and could be torn apart
_log = logging.getLogger("ratekeeper")


@contextmanager
def logging_as(log_format: LogFormat, *, access_log: bool) -> Iterator[None]:
    """Log in this format meanwhile: warnings, and in JSON also what is going on."""
    root, access = logging.getLogger(), logging.getLogger("ratekeeper.access")
    before = root.handlers[:], _log.level, access.level
    root.handlers[:] = [StderrLines(JsonLine() if log_format == "json" else TextLine())]
    _log.setLevel(logging.INFO if log_format == "json" else logging.WARNING)
    access.setLevel(logging.INFO if access_log else logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        _log.setLevel(before[1])
        access.setLevel(before[2])


class StderrLines(logging.Handler):
    """Writes each record as one line, in one piece, unless that would block."""

    def __init__(self, formatter: logging.Formatter, descriptor: int = _STDERR) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._descriptor = descriptor
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it as dropped."""
        try:
            if not self._is_ready():
                self._dropped += 1
                return
            if self._dropped:
                said = f"{self._dropped} lines of the log were dropped, because nobody read it"
                self._dropped = 0
                self._write(logging.LogRecord(record.name, logging.WARNING, "", 0, said, None, None))
            self._write(record)
        except OSError:  # nobody can read it any more
            self._dropped += 1

    def _write(self, record: logging.LogRecord) -> None:
        os.write(self._descriptor, self.format(record).encode("utf-8", "backslashreplace") + b"\n")

    def _is_ready(self) -> bool:
        if not hasattr(select, "poll"):  # on Windows
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(0))


class TextLine(logging.Formatter):
    """The message; what is in it does nothing to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        trace = "" if record.exc_info is None else f"\n{self.formatException(record.exc_info)[-_MAX_TEXT:]}"
        return f"{printable(record.getMessage()[:_MAX_TEXT])}{trace}"


class JsonLine(logging.Formatter):
    """An object with the time, the level, the message, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:_MAX_TEXT],
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None:
            line["exception"] = self.formatException(record.exc_info)[-_MAX_TEXT:]
        return json.dumps(line, default=str)
