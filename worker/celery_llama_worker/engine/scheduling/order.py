"""Which sequences are moved to other slots so that the rows of every call lie side by side. Pure; on the engine thread.

llama.cpp cuts a call wherever slot numbers have a gap, and every part reads all the weights again: 16 rows in every
other slot took 3.5 times as long as in slots side by side, while moving a slot of 1024 cells costs 2 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Move(NamedTuple):
    """Put what is in one slot into a free one."""

    source: int
    target: int


def side_by_side(groups: Iterable[set[int]], free: Iterable[int], slots: int, held: Callable[[int], int]) -> list[Move]:
    """Moves, in order, after which the slots of each group follow each other.

    `groups` are the slots of those that share a call, `free` those without a sequence, at least one, the one to be used
    first in front; in the others of the `slots` are sequences that do not decode. `held` says how much would be
    forgotten of a free slot.
    """
    room = _Room([set(group) for group in groups if group], list(free), slots)
    for group, window in room.windows(held):
        room.gather(group, window)
    return room.moves


class _Room:
    """The slots as they are after the moves so far."""

    def __init__(self, groups: list[set[int]], free: list[int], slots: int) -> None:
        self.moves: list[Move] = []
        self._groups, self._free, self._slots = groups, free, slots

    def windows(self, held: Callable[[int], int]) -> list[tuple[set[int], range]]:
        """Where each scattered group shall be; all groups, if there is no room between those that are in order."""
        taken = {slot for group in self._groups if _in_order(group) for slot in group}
        chosen: list[tuple[set[int], range]] = []

        def cost(group: set[int], window: range) -> tuple[int, int]:
            targets = [slot for slot in window if slot not in group]
            return len(targets), sum(held(slot) for slot in targets if slot in self._free)

        for group in self._groups:
            if _in_order(group):
                continue
            starts = range(self._slots - len(group) + 1)
            fitting = [range(start, start + len(group)) for start in starts]
            fitting = [window for window in fitting if taken.isdisjoint(window)]
            if not fitting:
                return self._one_after_the_other()
            window = min(fitting, key=lambda window: cost(group, window))
            chosen.append((group, window))
            taken |= set(window)
        return chosen

    def _one_after_the_other(self) -> list[tuple[set[int], range]]:
        windows, start = [], 0
        for group in sorted(self._groups, key=min):
            windows.append((group, range(start, start + len(group))))
            start += len(group)
        return windows

    def gather(self, group: set[int], window: range) -> None:
        """Bring a group into its window; free slots first: what leaves for them makes room for others in the way."""
        strays = sorted(group - set(window))
        for target in sorted(set(window) - group, key=lambda slot: (slot not in self._free, slot)):
            if target not in self._free:
                self._move(target, next(slot for slot in self._free if slot not in window))
            self._move(strays.pop(), target)

    def _move(self, source: int, target: int) -> None:
        self._free.remove(target)
        self._free.append(source)
        for group in self._groups:
            if source in group:
                group.remove(source)
                group.add(target)
        self.moves.append(Move(source, target))


def _in_order(group: set[int]) -> bool:
    return max(group) - min(group) < len(group)
