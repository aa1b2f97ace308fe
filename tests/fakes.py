"""An engine without a model: the next token is a function of everything that the slot's cells hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from worker.engine.plan import Call, CallError, CallResult, Copy, Drop, Limits, Load, Plan, Sampled, Save, Trim

VOCABULARY = 251


class FakeSampler:
    """Notes what it accepted and whether it was closed."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.closed = False

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Keeps each slot's tokens; a row out of place, or a wrong copy, shows in every later token."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.cells: list[list[int]] = [[] for _ in range(limits.slots + limits.spare_slots)]
        self.saved: dict[int, list[int]] = {}
        #: Outcomes of the next calls in place of decoding; None decodes.
        self.failures: deque[CallError | None] = deque()
        self.plans: list[Plan] = []

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        self.plans.append(plan)
        for operation in plan.operations:
            match operation:
                case Copy(source, target, tokens):
                    self.cells[target] = self.cells[source][:tokens]
                case Trim(slot, tokens):
                    del self.cells[slot][tokens:]
                case Save(slot, key):
                    self.saved[key] = list(self.cells[slot])
                case Load(slot, key):
                    self.cells[slot] = self.saved.pop(key)
                case Drop(key):
                    del self.saved[key]
        for call in plan.calls:
            error = self.failures.popleft() if self.failures else None
            if error is not None and error.cells_lost:
                self.cells = [[] for _ in self.cells]
            yield CallResult(error=error) if error is not None else self._decode(call)
            if error is not None and error.cells_lost:
                return

    def _decode(self, call: Call) -> CallResult:
        assert sum(len(piece.tokens) for piece in call) <= self.limits.batch_tokens
        assert len({piece.slot for piece in call}) == len(call)
        for piece in call:
            assert piece.start == len(self.cells[piece.slot]), "a piece begins where its slot's cells end"
            self.cells[piece.slot] += piece.tokens
            assert len(self.cells[piece.slot]) <= self.limits.cells_per_slot
        sampled = {piece.slot: Sampled(self._next(piece.slot)) for piece in call if piece.sampler is not None}
        return CallResult(sampled=sampled)

    def _next(self, slot: int) -> int:
        return sum((at + 1) * token for at, token in enumerate(self.cells[slot])) % VOCABULARY

    def close(self) -> None:
        self.cells = []
