"""Every point of a call at which a signal can be handled: `at(point, call)` lets one arrive just before it.

The arrival is noted by C code, as that of a real signal. The handler then runs where the interpreter itself looks for
signals, so nothing is tried that could not happen.
"""

import _thread
import dis
import signal
import sys
from contextlib import contextmanager

LOOKS = [  # by opcode: whether the interpreter may look for signals there, or at the start of a function called there
    any(part in name for part in ("CALL", "JUMP", "RESUME", "SEND", "YIELD")) for name in dis.opname
]


class Interruption(BaseException):
    """What a handler raises: like KeyboardInterrupt, no ordinary error."""


class _Arrival:
    """Its end is the arrival of a signal."""

    __del__ = staticmethod(_thread.interrupt_main)


@contextmanager
def handled_by(handler):
    """Let this function, without arguments, handle the signals that arrive."""
    before = signal.signal(signal.SIGINT, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt():
    raise Interruption


def warm(call):
    """Call twice, since Python 3.12 and later trace only code that was called before; then `at` sees every point."""
    for _ in range(2):
        at(sys.maxsize, call)


def at(point, call):
    """Call, and let a signal arrive at the point with this number; return whether there is such a point.

    Raises what its handler raises.
    """
    count = 0

    def instruction(frame, event, _):
        nonlocal count
        if event == "opcode" and LOOKS[frame.f_code.co_code[frame.f_lasti]]:
            count += 1
            if count > point:
                sys.settrace(None)
                arrival = _Arrival()  # noqa: F841 - it ends when this function has returned
        return instruction

    def enter(frame, _event, _):
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return instruction

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
        len(())  # after this call at the latest, the handler runs
    finally:
        sys.settrace(before)
    return count > point
