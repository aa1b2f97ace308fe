"""What the engine has done since it started: written on the engine thread, read by any other, so plain numbers only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence


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

    def note_step(self, computing: bool, decode_rows: int, slots: int) -> None:
        """Take note of a step that has just been planned."""
        self.steps += computing
        self.largest_batch = max(self.largest_batch, decode_rows)
        self.full_batches += decode_rows == slots

    def take_stock(self, running: Collection[tuple[Attempt, Sequence]], unfinished: int) -> None:
        """Take note of the sequences that have a slot, and of how many there are in all."""
        self.least_urgent = max((attempt.priority for attempt, _ in running), default=0)
        self.active = len(running)
        self.waiting = unfinished - sum(sequence.guided is None for _, sequence in running)
        self.cells_used = sum(sequence.read for _, sequence in running)
