"""An engine without a model: the next token is a function of everything that the slot's cells hold."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from celery_llama_worker.engine.plan import (
    Call,
    CallError,
    CallResult,
    CellOperation,
    Copy,
    Drop,
    Limits,
    Load,
    Piece,
    Plan,
    Sampled,
    Save,
    Trim,
)

VOCABULARY = 251
#: A fiftieth of the tokens, so that texts of some length often end by themselves.
FIRST_END_TOKEN = 246
#: A cell: the token, how many tokens were computed with it, which in a real engine decides its rounding, and how.
Cell = tuple[object, ...]


class FakeVocabulary:
    """Letters; two tokens are the halves of an é, and what is left over of those is no character at all."""

    def piece(self, token: int) -> bytes:
        letter = token % 26
        return {24: b"\xc3", 25: b"\xa9"}.get(letter, bytes([97 + letter]))

    def is_end(self, token: int) -> bool:
        return token >= FIRST_END_TOKEN


class FakeSampler:
    """Chooses by its seed and the cells, or says what it was told to; notes what it accepted and that it was closed."""

    def __init__(self, seed: int = 0, says: Iterable[int] = (), fault_at: int | None = None) -> None:
        self.accepted: list[int] = []
        self.closed = False
        self._seed, self._says, self._fault_at, self._drawn = seed, list(says), fault_at, 0

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def close(self) -> None:
        self.closed = True

    def next(self, cells: list[Cell]) -> int:
        assert not self.closed, "a closed sampler is not used"
        self._drawn += 1
        if self._drawn == self._fault_at:
            raise RuntimeError("the sampler is broken")
        return (
            self._says[self._drawn - 1] if self._says else zlib.crc32(repr((self._seed, cells)).encode()) % VOCABULARY
        )


class FakeEngine:
    """Keeps each slot's tokens; a row out of place, or a wrong copy, shows in every later token."""

    def __init__(self, limits: Limits, *, rounding: bool = False) -> None:
        """With `rounding`, a token depends also on where the text before it was cut into pieces."""
        self.limits = limits
        self.cells: list[list[Cell]] = [[] for _ in range(limits.slots + limits.spare_slots)]
        self.saved: dict[int, list[Cell]] = {}
        #: Outcomes of the next calls in place of decoding; None decodes.
        self.failures: deque[CallError | None] = deque()
        #: The error of a call that has this piece in it, if it cannot be computed.
        self.breaks: Callable[[Piece], CallError | None] = lambda piece: None
        self.plans: list[Plan] = []
        self.seconds_per_token = 0.0
        self._rounding = rounding

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        self.plans.append(plan)
        for operation in plan.operations:
            self._operate(operation)
        for call in plan.calls:
            chance = self.failures.popleft() if self.failures else None
            error = chance or next(filter(None, map(self.breaks, call)), None)
            if error is not None and error.cells_lost:
                self.cells = [[] for _ in self.cells]
            yield CallResult(error=error) if error is not None else self._decode(call)
            if error is not None and error.cells_lost:
                return

    def _operate(self, operation: CellOperation) -> None:
        match operation:
            case Copy(source, target, tokens):
                assert tokens <= len(self.cells[source]), "no cell is copied before it is written"
                self.cells[target] = self.cells[source][:tokens]
            case Trim(slot, tokens):
                assert tokens <= len(self.cells[slot]), "no cell is kept before it is written"
                del self.cells[slot][tokens:]
            case Save(slot, key):
                self.saved[key] = list(self.cells[slot])
            case Load(slot, key, keep):
                assert not self.cells[slot], "cells are brought back into an empty slot"
                cells = self.saved[key] if keep else self.saved.pop(key)
                self.cells[slot] = [(*cell,) for cell in cells]
            case Drop(key):
                del self.saved[key]

    def _decode(self, call: Call) -> CallResult:
        assert sum(len(piece.tokens) for piece in call) <= self.limits.batch_tokens
        assert len({piece.slot for piece in call}) == len(call), "a slot has one piece in a call"
        assert len({len(piece.tokens) for piece in call}) == 1, "all pieces of a call have the same length"
        assert len({piece.adapters for piece in call}) == 1, "all pieces of a call have the same adapters"
        result = CallResult(seconds=self.seconds_per_token * sum(len(piece.tokens) for piece in call))
        for piece in call:
            cells = self.cells[piece.slot]
            assert piece.start == len(cells), "a piece begins where its slot's cells end"
            assert piece.tokens, "a piece has a token"
            cells += [(token, len(piece.tokens) * self._rounding, *piece.adapters) for token in piece.tokens]
            assert len(cells) <= self.limits.cells_per_slot
        if self.limits.shared_cells:
            # A cell that was copied is still the same cell.
            used = {id(cell) for cells in self.cells for cell in cells}
            assert len(used) <= self.limits.cells_per_slot, "there are enough cells"
        guiding = {piece.slot for piece in call if piece.guides}
        assert guiding == {piece.guide[0] for piece in call if piece.guide}, "both of a guided pair are in the call"
        for piece in call:
            cells = self.cells[piece.slot] + (self.cells[piece.guide[0]] if piece.guide else [])
            if piece.sampler is not None:
                try:
                    result.sampled[piece.slot] = Sampled(cast(FakeSampler, piece.sampler).next(cells))
                except RuntimeError as error:
                    result.faults[piece.slot] = str(error)
        return result

    def close(self) -> None:
        self.cells = []
