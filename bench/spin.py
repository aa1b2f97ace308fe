"""How long ggml's threads should spin before they sleep: GOMP_SPINCOUNT, on a quiet machine and beside a neighbour.

libgomp reads the variable when it is loaded, so each value has a process of its own.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.child import child
from bench.quiet import in_turn
from bench.setting import Setting
from bench.stage import process
from bench.work import distinct

_VALUES = ("default", "100", "1000", "10000", "100000")
#: A process that takes a fifth of a core.
_NEIGHBOUR = """
import time
while True:
    until = time.perf_counter() + 0.004
    while time.perf_counter() < until:
        pass
    time.sleep(0.016)
"""


def measure(setting: Setting) -> dict[str, Any]:
    """Decoded tokens/s of the bare loop by value: alone, and beside a neighbour."""
    return {
        "alone": _values(setting, neighbour=False),
        "neighbour of 0.2 cores": _values(setting, neighbour=True),
    }


def _values(setting: Setting, *, neighbour: bool) -> dict[str, Any]:
    slots = setting.size(8, 2)
    work = distinct(setting.model, slots, 64, setting.size(48, 8))
    print(f"\nGOMP_SPINCOUNT, {slots} sequences{', a neighbour' if neighbour else ''}")
    with ExitStack() as stack:
        sides = {}
        for value in _VALUES:
            environment = {"GOMP_SPINCOUNT": value} if value.isdigit() else {}
            size: dict[str, Any] = {"ctx_per_slot": 1024, "threads": setting.threads}
            loop = stack.enter_context(child(setting.path, slots, **size, environment=environment))
            sides[value] = partial(loop.decoded_per_second, work)
        if neighbour:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spin-"))) / "log"
            stack.enter_context(process([sys.executable, "-c", _NEIGHBOUR], log))
        rounds = setting.referee.play(in_turn(sides))
    return rounds.figures(*(f"{value}/default" for value in _VALUES[1:]), unit="tokens/s")
