"""Prefixes that lost their slot, kept in host memory; least recently used first to go. Pure; engine thread.

In the prefix cache a stored prefix is a holder like a slot, with a negative number.
"""

from __future__ import annotations


class PrefixStore:
    """Knows what is stored and what has to go; the engine holds the bytes."""

    def __init__(self, cells: int) -> None:
        """`cells`: how many cells may be stored in all; 0 stores nothing."""
        self._cells = cells
        self._used = 0
        #: Cells by holder, the one used longest ago first.
        self._stored: dict[int, int] = {}

    def make_room(self, cells: int) -> list[int] | None:
        """The holders that must go so that a prefix of this many cells can be stored; None if it never can."""
        if not 0 < cells <= self._cells:
            return None
        gone: list[int] = []
        for holder, size in self._stored.items():
            if self._used + cells <= self._cells:
                break
            gone.append(holder)
            self._used -= size
        for holder in gone:
            del self._stored[holder]
        return gone

    def add(self, holder: int, cells: int) -> None:
        """Take note of a stored prefix."""
        self._stored[holder] = cells
        self._used += cells

    def clear(self) -> list[int]:
        """Forget everything; the holders that are to be dropped."""
        gone, self._stored, self._used = list(self._stored), {}, 0
        return gone

    def touch(self, holder: int) -> None:
        """It has been used just now."""
        self._stored[holder] = self._stored.pop(holder)
