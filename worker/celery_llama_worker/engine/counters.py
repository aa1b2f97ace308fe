"""What the engine has done since it started: written on the engine thread, read by any other, so plain numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What the engine has done since it started; read by other threads, so plain numbers only."""

    steps: int = 0
    generated_tokens: int = 0
    read_tokens: int = 0
    copied_tokens: int = 0
    #: Times that a sequence lost its slot to a more urgent one.
    set_aside: int = 0
    largest_batch: int = 0
    #: Steps whose decode call had a row for every slot.
    full_batches: int = 0
    #: The least urgent priority among those that have a slot.
    least_urgent: int = 0
    active: int = 0
    waiting: int = 0
    cells_used: int = 0
    #: What a call takes that cannot be made shorter: an engine that says nothing for so long is at work.
    longest_call_seconds: float = 0.0

    def note_step(self, computing: bool, decode_rows: int, slots: int) -> None:
        """Take note of a step that has just been planned."""
        self.steps += computing
        self.largest_batch = max(self.largest_batch, decode_rows)
        self.full_batches += decode_rows == slots

    def take_stock(self, *, active: int, waiting: int, least_urgent: int, cells_used: int = 0) -> None:
        """Take note of how many have a slot (or a place in the call), how many have none, and of the last of those."""
        self.active, self.waiting = active, waiting
        self.least_urgent, self.cells_used = least_urgent, cells_used
