"""Finds out whether a job's output depends on its neighbours, and how fast the machine is. Runs once, at the start.

Output does not depend on them where a row's arithmetic does not depend on how many rows are computed with it: quantised
weights on a CPU. Float kernels, and most GPU kernels, are chosen by the number of rows, and then sums are rounded
differently: one from 9 rows on, another beyond 64, another where a number is no multiple of 32. So every shape that the
scheduler may make is tried on both sides of the powers of two, and compared bit by bit; in doubt the answer is no.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from celery_llama_worker.engine.pace import Speed
from celery_llama_worker.engine.plan import (
    Adapters,
    CellOperation,
    Copy,
    Engine,
    Limits,
    Load,
    Piece,
    Plan,
    Sampled,
    Save,
    Trim,
)
from celery_llama_worker.engine.trial import checked, measure_speed, on_a_thread_of_its_own
from celery_llama_worker.errors import EngineFault

Logits = npt.NDArray[np.float32]

#: More cells than attention takes in one go: a neighbour with a longer text must not change how a short one is summed.
_LONG_TOKENS = 257
#: A prompt's end that is no whole chunk is tried in such lengths, by twos: whatever number of rows a kernel begins at,
#: it lies between one of these alone and two of them together.
_PARTS = (3, 5, 9, 17, 33, 65, 129, 257)
#: So many of them are tried by as many sequences as whole chunks are.
_CROWDED_PARTS = 2


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe found."""

    #: Decoding gives the same logits alone and among others, bit for bit.
    decode: bool
    #: So does reading a prompt in whole chunks, and its end, alone and together with others' chunks.
    prefill: bool
    #: Whether there was time to look at everything.
    complete: bool
    #: The decode calls that were tried, by their rows.
    rows: Sequence[int]
    #: Prompt tokens that a step may read: as many as were read together here.
    step_tokens: int
    speed: Speed
    seconds: float

    @property
    def reproducible(self) -> bool:
        """Whether a job's output is a function of the job alone."""
        return self.complete and self.decode and self.prefill

    @property
    def looked_at(self) -> str:
        """What was tried, in words."""
        unfinished = "" if self.complete else ", and not all for want of time"
        rows = f"calls of {', '.join(map(str, sorted(self.rows)))} rows" if self.rows else "no decode calls"
        return f"{rows}, up to {self.step_tokens} tokens of prompts{unfinished}, in {self.seconds:.1f} s"


def probe(
    engine: Engine,
    n_vocab: int,
    chunk_tokens: int,
    adapters: Adapters = (),
    *,
    step_seconds: float = float("inf"),
    limit_seconds: float = float("inf"),
) -> ProbeReport:
    """Decode the same sequence alone and among others and compare; leaves every slot empty.

    `chunk_tokens` is the scheduler's size of chunks, and `step_seconds` what its steps may take: more chunks than that
    allows are not read together. `adapters` are applied to all sequences. What there is no time for within
    `limit_seconds` counts as different; the speed is measured in any case. Raises EngineFault if the device cannot
    decode at all.
    """
    if engine.limits.shared_cells:  # that texts of some length differ there is known, and short ones would not show it
        begun, speed = time.perf_counter(), measure_speed(engine, n_vocab, chunk_tokens)
        return ProbeReport(
            False, False, True, (), engine.limits.batch_tokens, speed, seconds=time.perf_counter() - begun
        )
    return on_a_thread_of_its_own(_Probe(engine, n_vocab, chunk_tokens, adapters, step_seconds, limit_seconds).run)


def row_counts(slots: int) -> list[int]:
    """Numbers of rows to try, the largest first: those on both sides of powers of two, and all the slots."""
    edges = {2**power + beside for power in range(1, 9) for beside in (-1, 0, 1)}
    return sorted({slots, *(rows for rows in edges if 2 <= rows < slots)}, reverse=True)


class _Recorder:
    """Stands where a sampler stands, and keeps the logits."""

    quick = True

    def __init__(self) -> None:
        self.logits: Logits = np.empty(0, dtype=np.float32)

    def sample(self, row: Logits, _candidates: object) -> Sampled:
        self.logits = row.copy()
        return Sampled(0)

    def accept(self, token: int) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Nothing is held."""


class _OutOfTime(Exception):
    """There is none left for the next call."""


class _Probe:
    """One go at it: a text alone, then the same text in every slot but one, which holds a longer and different one."""

    def __init__(
        self,
        engine: Engine,
        n_vocab: int,
        chunk_tokens: int,
        adapters: Adapters,
        step_seconds: float,
        limit_seconds: float,
    ) -> None:
        self._engine, self._limits, self._adapters = engine, engine.limits, adapters
        self._step_seconds, self._begun = step_seconds, time.perf_counter()
        self._deadline = self._begun + limit_seconds
        self._rows = row_counts(self._limits.slots)
        self._cuts = _cuts(self._limits, chunk_tokens, len(self._rows))
        randomness = random.Random(0)
        length = max(sum(self._cuts), _LONG_TOKENS) + len(self._rows)
        self._text, self._other_text = ([randomness.randrange(n_vocab) for _ in range(length)] for _ in range(2))
        #: The slot with the other text; the last of three, so that calls of few rows have it, too.
        self._other = 2 if self._limits.slots > 2 and self._limits.cells_per_slot >= length else None
        #: By the position after its last token: the logits of a piece that was computed alone.
        self._alone: dict[int, Logits] = {}
        self._seconds_per_token = self._seconds_per_row_call = 0.0
        self._decode = self._prefill = True
        self._together, self._step_tokens = 1, chunk_tokens
        self._tried: list[int] = []

    def run(self) -> ProbeReport:
        complete = True
        try:
            self._compute_alone()
            self._read_among_others()
            self._fill_slots()
            self._decode_among_others()
        except _OutOfTime:
            complete = False
        finally:
            self._operate([Trim(slot, 0) for slot in range(self._limits.slots)])
        speed = Speed(
            self._seconds_per_token, self._seconds_per_row_call or self._seconds_per_token * self._limits.slots
        )
        seconds = time.perf_counter() - self._begun
        return ProbeReport(self._decode, self._prefill, complete, tuple(self._tried), self._step_tokens, speed, seconds)

    # ---- the stages

    def _compute_alone(self) -> None:
        self._call([self._piece(0, 0, 1)])  # has to fetch the weights, and says nothing about the others' speed
        self._operate([Trim(0, 0)])
        at = 0
        for length in (*self._cuts, *(1 for _ in self._rows)):
            recorder = _Recorder()
            seconds = self._call([self._piece(0, at, length, recorder)])
            if not at:
                self._seconds_per_token = seconds / length
                self._together = self._most_together(length)
                self._step_tokens *= self._together
            at += length
            self._alone[at] = recorder.logits
        if all(np.isnan(logits).all() for logits in self._alone.values()):
            raise EngineFault("the model computes logits that are not numbers")
        self._operate([Trim(0, 0)])

    def _most_together(self, length: int) -> int:
        """How many chunks the scheduler may put into a call."""
        most: float = min(self._limits.batch_tokens // length, self._limits.slots)
        if self._seconds_per_token:
            most = min(most, self._step_seconds / (self._seconds_per_token * length))
        return max(1, int(most))

    def _read_among_others(self) -> None:
        """Whole chunks as many at a time as a step may read, the first parts as well, the others by twos."""
        at, pair = 0, min(2, self._limits.slots)
        for number, length in enumerate(self._cuts):
            readers = max(self._together, pair) if number <= _CROWDED_PARTS else pair
            width = max(1, min(readers, self._step_tokens // length))
            for first in range(0, readers, width):
                self._prefill &= self._same(range(first, min(first + width, readers)), at, length)
            at += length

    def _fill_slots(self) -> None:
        """Copy what the first two hold, as prefixes are shared and sequences moved, or set aside and brought back."""
        operations: list[CellOperation] = []
        for slot in range(2, self._limits.slots):
            if self._limits.can_trim and slot % 4 < 2:
                operations.append(Copy(slot % 2, slot, sum(self._cuts)))
            else:
                operations += [Trim(slot, 0), Save(slot % 2, slot), Load(slot, slot)]
        self._operate(operations)
        if self._other is not None:
            self._operate([Trim(self._other, 0)])
            for at in range(0, _LONG_TOKENS, self._step_tokens):
                self._call([self._piece(self._other, at, min(self._step_tokens, _LONG_TOKENS - at))])

    def _decode_among_others(self) -> None:
        """Fewer rows in each call, so that those that are left have taken part in all calls before."""
        at = sum(self._cuts)
        for step, rows in enumerate(self._rows):
            self._decode &= self._same(range(rows), at + step, 1, _LONG_TOKENS + step)
            self._tried.append(rows)

    # ---- calls

    def _same(self, slots: Iterable[int], at: int, length: int, at_in_other: int | None = None) -> bool:
        """Compute a piece of this length in each slot, in one call; whether all are as they were alone."""
        recorders: list[_Recorder] = []
        pieces: list[Piece] = []
        for slot in slots:
            if slot == self._other:
                pieces.append(self._piece(slot, at if at_in_other is None else at_in_other, length))
            else:
                recorders.append(_Recorder())
                pieces.append(self._piece(slot, at, length, recorders[-1]))
        seconds = self._call(pieces)
        if length == 1:
            self._seconds_per_row_call = max(self._seconds_per_row_call, seconds)
        return all(np.array_equal(recorder.logits, self._alone[at + length]) for recorder in recorders)

    def _piece(self, slot: int, at: int, length: int, recorder: _Recorder | None = None) -> Piece:
        text = self._other_text if slot == self._other else self._text
        return Piece(slot, at, text[at : at + length], recorder, adapters=self._adapters)

    def _call(self, pieces: Sequence[Piece]) -> float:
        """One call, if there is time for it; the seconds it took."""
        seconds = sum(len(piece.tokens) for piece in pieces) * self._seconds_per_token
        if seconds and time.perf_counter() + seconds > self._deadline:
            raise _OutOfTime
        (result,) = checked(self._engine.execute(Plan(calls=[pieces])))
        return result.seconds

    def _operate(self, operations: Sequence[CellOperation]) -> None:
        list(self._engine.execute(Plan(operations)))


def _cuts(limits: Limits, chunk_tokens: int, rows: int) -> list[int]:
    """A whole chunk and then parts of chunks, as many as a slot has room for beside so many rows."""
    room = limits.cells_per_slot - rows
    cuts = [min(chunk_tokens, room)]
    for part in _PARTS:
        if part < chunk_tokens and sum(cuts) + part <= room:
            cuts.append(part)
    return cuts
