"""Sides that work at the same time of day: each computes for a moment, then stands still while the others do.

A machine that is shared computes a fifth faster or slower from one half-minute to the next; whoever is measured half a
minute after the other is compared with another machine. In short turns all sides see the same one.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Long against the millisecond that stopping and going on costs, short against the machine's moods.
_TURN_SECONDS = 0.2


@dataclass(frozen=True)
class Side:
    """Work to be done, and the process that does it, which stands still while it is another side's turn."""

    #: Blocks until the work is done, and computes next to nothing itself; returns how much work that was.
    run: Callable[[], float]
    process: subprocess.Popen[bytes]


@dataclass
class Lap:
    """What a side needed."""

    work: float = 0.0
    #: Its turns: when they began and ended (`time.time`).
    turns: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it computed."""
        return self.seconds_until(float("inf"))

    def seconds_until(self, moment: float) -> float:
        """How long it had computed at some moment (`time.time`)."""
        return sum(max(0.0, min(ended, moment) - begun) for begun, ended in self.turns)


def race(sides: Mapping[str, Side]) -> dict[str, Lap]:
    """Let all sides do their work, in turns; their processes stand still before and after."""
    laps = {name: Lap() for name in sides}
    running: dict[str, Future[float]] = {}
    with ThreadPoolExecutor(len(sides)) as threads:
        while left := [name for name in sides if name not in running or not running[name].done()]:
            for name in left:
                with _turn(sides[name], laps[name]):
                    if name not in running:
                        running[name] = threads.submit(sides[name].run)
                    wait([running[name]], timeout=_TURN_SECONDS)
    for name, done in running.items():
        laps[name].work = done.result()
    return laps


def rates(sides: Mapping[str, Side]) -> dict[str, float]:
    """Work per second of each side in a race."""
    with standing_still(side.process for side in sides.values()):
        return {name: lap.work / lap.seconds for name, lap in race(sides).items()}


@contextmanager
def standing_still(processes: Iterable[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Processes that are stopped, and go on afterwards."""
    stopped = list(processes)
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)


@contextmanager
def _turn(side: Side, lap: Lap) -> Iterator[None]:
    side.process.send_signal(signal.SIGCONT)
    begun = time.time()
    yield
    lap.turns.append((begun, time.time()))
    side.process.send_signal(signal.SIGSTOP)
