"""Who has the longer slice is interrupted by whoever has the shorter one."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable

import pytest

from celery_llama_worker.engine.llama.time_slice import LONG_SLICE_NS, lengthen_slice, restore_slice, slice_ns


def in_a_thread(act: Callable[[], None] | None) -> list[int | None]:
    """The slice of a thread, and of one that it starts, after it has done something."""
    found: list[int | None] = []

    def note() -> None:
        found.append(slice_ns())

    def run() -> None:
        if act is not None:
            act()
        note()
        child = threading.Thread(target=note)
        child.start()
        child.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def has_slices() -> bool:
    """Whether this is a Linux of which a thread may ask for a slice."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    return tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 12)


@pytest.mark.skipif(not has_slices(), reason="this system has one slice for all")
def test_the_engine_thread_and_those_it_starts_have_long_slices_and_nobody_else_has() -> None:
    before, _ = in_a_thread(None)

    assert before is not None
    assert before < LONG_SLICE_NS
    assert in_a_thread(lengthen_slice) == [LONG_SLICE_NS, LONG_SLICE_NS]
    assert in_a_thread(None) == [before, before]


def test_a_helper_of_the_engine_thread_has_the_system_s_slice_again() -> None:
    before, _ = in_a_thread(None)

    def act() -> None:
        lengthen_slice()
        restore_slice()

    assert in_a_thread(act) == [before, before]


@pytest.mark.skipif(not has_slices(), reason="this system has one slice for all")
def test_lengthening_a_slice_leaves_the_rest_of_a_thread_s_scheduling_alone() -> None:
    found: list[tuple[int, int]] = []

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        lengthen_slice()
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert found == [(os.SCHED_BATCH, 7)]


def test_where_the_system_has_no_slices_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "sparc")

    assert in_a_thread(lengthen_slice) == [None, None]
