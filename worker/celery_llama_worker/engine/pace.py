"""How fast this machine computes, and so how many prompt tokens a step may read: a step is bounded by time. Pure.

A step of 512 tokens takes a fraction of a second on one machine and more than a lease on another. Only how many chunks
a step reads depends on the pace, never where a prompt is cut, so output does not. Owned by a scheduler, engine thread.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: How much of what is known is kept when a call adds to it: the last few calls count.
_KEPT = 0.75
#: A call may count as so many times slower than was expected: a process that was stopped meanwhile says nothing of it.
_MOST_SLOWER = 4.0


class Speed(NamedTuple):
    """What a machine needs for a model; 0 is not known."""

    #: To read one token of a prompt, among as many as a chunk has.
    seconds_per_token: float = 0.0
    #: For one call with a decode row of every slot.
    seconds_per_row_call: float = 0.0


UNKNOWN = Speed()


class Pace:
    """Bounds what a step reads, and says how long the longest call may take; learns from every call."""

    def __init__(self, most_tokens: int, unit_tokens: int, step_seconds: float, speed: Speed) -> None:
        """A step reads `most_tokens` if that takes less than `step_seconds`, and `unit_tokens` however long that takes.

        `speed` is what was measured at start.
        """
        self._most_tokens, self._unit_tokens, self._step_seconds = most_tokens, unit_tokens, step_seconds
        self._tokens, self._seconds = float(unit_tokens), speed.seconds_per_token * unit_tokens
        self._all_rows_seconds = self._rows_seconds = speed.seconds_per_row_call

    def note_chunks(self, tokens: int, seconds: float) -> None:
        """Take note of a call that read prompts."""
        seconds = _plausible(seconds, tokens * self._seconds / self._tokens)
        # weighed by tokens: what a call of two tokens takes says little about one of a hundred
        self._tokens, self._seconds = _KEPT * self._tokens + tokens, _KEPT * self._seconds + seconds

    def note_rows(self, seconds: float) -> None:
        """Take note of a call of decode rows, however many there were."""
        seconds = _plausible(seconds, self._rows_seconds)
        self._rows_seconds = max(_KEPT * self._rows_seconds + (1 - _KEPT) * seconds, self._all_rows_seconds)

    @property
    def budget_tokens(self) -> int:
        """How many prompt tokens a step may read."""
        fitting = self._step_seconds * self._tokens / self._seconds if self._seconds else math.inf
        return int(max(self._unit_tokens, min(self._most_tokens, fitting)))

    @property
    def longest_call_seconds(self) -> float:
        """What the longest call that cannot be made shorter takes: a unit of a prompt, or a row for everybody."""
        return max(self._unit_tokens * self._seconds / self._tokens, self._rows_seconds)


def _plausible(seconds: float, expected_seconds: float) -> float:
    return min(seconds, _MOST_SLOWER * expected_seconds) if expected_seconds else seconds
