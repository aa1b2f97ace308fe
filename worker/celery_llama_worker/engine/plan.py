"""What a step is: plain data that the scheduler writes, the engine executes, and the scheduler accounts for.

Owned by nobody: everything here is passed between scheduler and engine on the engine thread. Imports no I/O library and
no llama_cpp, so every rule of the scheduler is tested with a fake engine.

Words: a *slot* is a llama.cpp sequence id and the cells that belong to it; a *row* is one token in a batch; a *piece*
is the rows of one sequence in a call; a *call* is one `llama_decode`; a *step* is one plan executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Copy:
    """Make the target slot's cells equal to the first `tokens` cells of the source slot."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep the first `tokens` cells of a slot, drop the rest."""

    slot: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Save:
    """Keep a copy of a slot's cells in host memory, under a key."""

    slot: int
    key: int


@dataclass(frozen=True, slots=True)
class Load:
    """Give an empty slot the cells that were kept under a key; forget the copy unless it is to be kept."""

    slot: int
    key: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the copy that was kept under a key."""

    key: int


CellOperation = Copy | Trim | Save | Load | Drop


class Sampler(Protocol):
    """Chooses a sequence's next token; holds penalties, grammar and random state. Used on the engine thread only."""

    def accept(self, token: int) -> None:
        """Take note of a token that was delivered by an earlier attempt."""

    def close(self) -> None:
        """Free what the sampler holds; safe to call twice."""


#: The values of an embedding.
Values = npt.NDArray[np.float32]

#: The LoRA adapters that a sequence is computed with: names and scales, sorted, none of them 0. Cells computed with one
#: set are of no use with another, and llama.cpp applies one set to a whole call.
Adapters = tuple[tuple[str, float], ...]


class Piece(NamedTuple):
    """Consecutive tokens of one sequence: a decode row, or a chunk of a prompt."""

    slot: int
    #: Position of the first token, which is also the number of cells the slot has before this piece.
    start: int
    tokens: Sequence[int]
    #: Samples from the last token's logits; None inside a prompt.
    sampler: Sampler | None
    #: Classifier-free guidance: the slot of the negative prompt, whose piece is in the same call, and the scale.
    guide: tuple[int, float] | None = None
    #: This piece is a negative prompt's: its logits steer another piece.
    guides: bool = False
    adapters: Adapters = ()

    @property
    def wants_logits(self) -> bool:
        """Whether anybody looks at the logits of its last token."""
        return self.sampler is not None or self.guides


#: All pieces of a call have the same adapters and the same length: llama.cpp would cut unequal ones into sub-batches,
#: and where a prompt is cut decides its rounding.
Call = Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: first the cell operations in order, then the calls in order."""

    operations: Sequence[CellOperation] = ()
    calls: Sequence[Call] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.calls and not self.operations


class Alternative(NamedTuple):
    """A token and its log-probability before sampling."""

    token: int
    logprob: float


class Sampled(NamedTuple):
    """The token that a sampler chose; log-probabilities where the job asked for them."""

    token: int
    logprob: float | None = None
    alternatives: Sequence[Alternative] = ()


@dataclass(frozen=True, slots=True)
class CallError:
    """A call that failed as a whole. No piece of it was computed."""

    message: str
    #: The cells of every slot are lost: the engine has built a new, empty context.
    cells_lost: bool


@dataclass(slots=True)
class CallResult:
    """What came of one call, by slot."""

    sampled: dict[int, Sampled] = field(default_factory=dict)
    #: Sequences whose sampler raised; their neighbours are not concerned.
    faults: dict[int, str] = field(default_factory=dict)
    #: Of an embedding engine: each text's vector, as the model pools it.
    vectors: dict[int, Values] = field(default_factory=dict)
    #: The call failed as a whole.
    error: CallError | None = None
    #: How long the call took, sampling included; 0 if nobody measured.
    seconds: float = 0.0


class Limits(NamedTuple):
    """What the engine can hold."""

    #: Sequences at the same time.
    slots: int
    #: Cells of one slot: its prompt and its output together.
    cells_per_slot: int
    #: Most tokens of a single call.
    batch_tokens: int
    #: False for recurrent, hybrid and sliding-window models: their cells cannot be cut or copied in part.
    can_trim: bool
    #: Slots beyond those, so that there is always a free one to move a sequence to.
    spare_slots: int = 0
    #: The cells are one pool (the unified layout): `cells_per_slot` is then the whole pool.
    shared_cells: bool = False
    #: Host memory that a cell takes when it is set aside or stored.
    cell_bytes: int = 1


class Engine(Protocol):
    """Executes plans. Used on the engine thread only."""

    @property
    def limits(self) -> Limits:
        """What it can hold."""

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        """Carry out a plan, yielding a call's result as soon as it is there, in the calls' order.

        Stops early after a call that lost the cells. Raises nothing that a job could cause.
        """

    def close(self) -> None:
        """Free the context."""


class Vocabulary(Protocol):
    """What the decoding side must know of the model's tokens. Any thread."""

    def piece(self, token: int) -> bytes:
        """The token's bytes; empty for control tokens."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
