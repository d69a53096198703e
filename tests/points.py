"""Every point of a call at which a signal can be handled: `at(point, call)` delivers one just before it.

C code notes the arrival, as it does for a real signal. The handler then runs where the interpreter itself checks for
signals, so nothing is tried that could not happen.
"""

import _thread
import dis
import signal
import sys
import threading
from contextlib import contextmanager

from tests.waiters import PATIENCE

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


def arrive():
    """Let a signal arrive now."""
    _thread.interrupt_main()


@contextmanager
def bounded(seconds=PATIENCE):
    """Fail if this takes so long that it hangs; only in the main thread."""

    def give_up(*_):
        raise AssertionError(f"it hangs: no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def at(point, call):
    """Call, and let a signal arrive at the point with this number; return whether there is such a point.

    Raises what its handler raises.
    """
    left = point
    is_over = False

    def is_reached(code, offset):
        nonlocal left
        left -= LOOKS[code.co_code[offset]] and not is_over
        return left < 0

    with _each_instruction(is_reached):
        try:
            call()
            len(())  # after this call at the latest, the handler runs
        finally:
            is_over = True
    return left < 0


def count(call):
    """Call, and return how many points that has."""
    found = 0

    def count(code, offset):
        nonlocal found
        found += LOOKS[code.co_code[offset]]

    with _each_instruction(count):
        call()
    return found


@contextmanager
def _traced(is_reached):
    """Ask before each instruction of this thread, and let a signal arrive before the first one that is reached."""

    def instruction(frame, event, _):
        if event == "opcode" and is_reached(frame.f_code, frame.f_lasti):
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
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(is_reached):
    """As `_traced`, which sees only some of the instructions from Python 3.12 on."""
    monitoring = sys.monitoring
    tool, event = 4, monitoring.events.INSTRUCTION
    thread = threading.get_ident()

    def instruction(code, offset):
        if threading.get_ident() == thread and is_reached(code, offset):
            monitoring.set_events(tool, 0)
            arrival = _Arrival()  # noqa: F841 - as above

    monitoring.use_tool_id(tool, "points")
    monitoring.register_callback(tool, event, instruction)
    monitoring.set_events(tool, event)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


_each_instruction = _monitored if hasattr(sys, "monitoring") else _traced
