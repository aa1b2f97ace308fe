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
    active: int = 0
    waiting: int = 0
    cells_used: int = 0
