"""Rounds of measurements on a machine that others use too: watches who else computes, and discards disturbed rounds.

ggml's threads wait for each other at every operation, so a neighbour that takes a tenth of a core takes a tenth of
everything. What others used is known exactly: the kernel's count of busy time less that of our own processes.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Cores that others may use during a round, on average.
LIMIT_CORES = 0.06
_PROC = Path("/proc")


class Neighbours:
    """The processor time of everybody but this process and its descendants."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._at, self._seconds = time.monotonic(), _foreign_seconds()

    def cores(self) -> float:
        """How many cores the others have used on average; 0 where the system does not say."""
        elapsed = time.monotonic() - self._at
        return max(0.0, (_foreign_seconds() - self._seconds) / elapsed) if elapsed else 0.0


@dataclass
class Rounds:
    """What a series of rounds gave, for each side one value a round."""

    values: dict[str, list[float]]
    discarded: int = 0
    #: There were too few quiet rounds, so that disturbed ones had to be kept.
    disturbed: bool = False
    neighbours: list[float] = field(default_factory=list)

    def median(self, side: str) -> float:
        """The median of one side."""
        return statistics.median(self.values[side])

    def ratio(self, side: str, other: str) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.values[side], self.values[other], strict=True))

    def figures(self, *ratios: str, **more: object) -> dict[str, Any]:
        """As it goes into the results' file, with ratios such as "queue/limit" where both sides were there."""
        pairs = [(ratio, *ratio.split("/")) for ratio in ratios]
        return {
            **more,
            **{
                ratio: round(self.ratio(side, other), 4)
                for ratio, side, other in pairs
                if {side, other} <= self.values.keys()
            },
            "medians": {side: round(self.median(side), 4) for side in self.values},
            "values": {side: [round(value, 4) for value in values] for side, values in self.values.items()},
            "rounds": len(self.neighbours),
            "discarded": self.discarded,
            "disturbed": self.disturbed,
            "neighbours_cores": [round(cores, 3) for cores in self.neighbours],
        }


def in_turn(sides: Mapping[str, Callable[[], float]]) -> Callable[[], dict[str, float]]:
    """A round of all sides, one after another."""
    return lambda: {name: measure() for name, measure in sides.items()}


@dataclass(frozen=True)
class Referee:
    """Runs rounds of which each gives all figures."""

    rounds: int
    #: How long it waits for a quiet moment before a round.
    patience_seconds: float
    #: How many rounds it plays at the most to get enough quiet ones.
    tries: int

    def play(self, measure: Callable[[], dict[str, float]]) -> Rounds:
        """Run rounds until enough were quiet; with too few of them, take the quietest."""
        played: list[tuple[float, dict[str, float]]] = []
        for _ in range(self.tries):
            _wait_for_quiet(self.patience_seconds)
            neighbours = Neighbours()
            values = measure()
            played.append((neighbours.cores(), values))
            print("   ".join(f"{name} {value:.4g}" for name, value in values.items()) + _remark(played[-1][0]))
            if sum(cores <= LIMIT_CORES for cores, _ in played) == self.rounds:
                break
        quiet = [entry for entry in played if entry[0] <= LIMIT_CORES]
        disturbed = len(quiet) < self.rounds
        kept = sorted(played, key=lambda entry: entry[0])[: self.rounds] if disturbed else quiet
        discarded = len(played) - len(kept)
        print(f"{len(kept)} round(s), {discarded} discarded{', DISTURBED' if disturbed else ''}")
        return Rounds(
            values={name: [values[name] for _, values in kept] for name in kept[0][1]},
            discarded=discarded,
            disturbed=disturbed,
            neighbours=[cores for cores, _ in kept],
        )


def _remark(cores: float) -> str:
    return f"   (others used {cores:.2f} cores)" if cores > LIMIT_CORES else ""


def _wait_for_quiet(patience_seconds: float) -> None:
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        neighbours = Neighbours()
        time.sleep(min(1.0, patience_seconds))
        if neighbours.cores() <= LIMIT_CORES:
            return


def _foreign_seconds() -> float:
    try:
        fields = [int(text) for text in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]]
    except OSError:  # not Linux
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = fields[:8]
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - sum(seconds for _, seconds in family())


def family() -> Iterator[tuple[int, float]]:
    """This process and its descendants: process id, seconds of processor time with those of ended children."""
    table: dict[int, tuple[int, float]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        ticks = sum(int(text) for text in fields[11:15])
        table[int(folder.name)] = int(fields[1]), ticks / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, (parent, _) in table.items() if parent in ours} - ours:
        ours |= more
    return ((pid, table[pid][1]) for pid in ours if pid in table)
