"""The engine's time slice: a long one, so that whoever wakes up for a moment runs at once. Each thread sets its own.

ggml's threads take every core for as long as a step lasts. A thread that wakes up meanwhile (the publisher, Redis, a
reader) may interrupt at once only those whose slice is longer than its own; for others it waits up to 3 ms, and a token
has three such threads to pass. Slices say who goes first, not how much of the processor anybody gets.

Linux 6.12 and later ("sched/eevdf: Allow shorter slices to wakeup-preempt"); elsewhere nothing changes.
"""

from __future__ import annotations

import ctypes
import platform
import sys

#: The longest that Linux knows.
LONG_SLICE_NS = 100_000_000
#: The slice of such policies, SCHED_OTHER and SCHED_BATCH, is a wish; of others it is a reservation.
_FAIR = (0, 3)
#: Numbers of sched_setattr and sched_getattr, for which glibc has functions only since 2.41.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}


class _Attributes(ctypes.Structure):
    """`struct sched_attr` (include/uapi/linux/sched/types.h)."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    ]


def lengthen_slice() -> None:
    """Ask for long slices for this thread and those that it will start, such as ggml's."""
    _ask_for(LONG_SLICE_NS)


def restore_slice() -> None:
    """Take the system's slice again: for a thread that the engine starts and that shall interrupt ggml's."""
    _ask_for(0)


def slice_ns() -> int | None:
    """This thread's slice, 0 if it has the system's; None where the system does not say."""
    attributes = _read()
    return None if attributes is None else int(attributes.runtime_ns)


def _ask_for(slice_ns: int) -> None:
    attributes = _read()
    if attributes is not None and attributes.policy in _FAIR:
        attributes.runtime_ns = slice_ns
        _call(0, ctypes.byref(attributes), 0)  # where it is refused, tokens are a few milliseconds later


def _read() -> _Attributes | None:
    attributes = _Attributes()
    failed = _call(1, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    return None if failed else attributes


def _call(which: int, *arguments: object) -> int:
    """One of the two system calls, for this thread; anything but 0 where it does not exist or is refused."""
    numbers = _CALLS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        return -1
    return int(ctypes.CDLL(None).syscall(numbers[which], 0, *arguments))
