"""The engine: one llama.cpp context, its cells and its batch. Owned by the engine thread, which alone may call it.

By default the cells are partitioned: every slot has its own, so a job can neither run out of cells nor see its
output change with its neighbours'. `llama_decode` and the samplers release the GIL.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from celery_llama_worker.engine.llama.batch import Batch
from celery_llama_worker.engine.llama.context import (
    LlamaContext,
    cell_bytes,
    context_params,
    spare_slots,
    warn_of_memory,
)
from celery_llama_worker.engine.llama.machine import usable_cores
from celery_llama_worker.engine.llama.model import LlamaModel, complaint
from celery_llama_worker.engine.llama.sampling_crew import Row, RowSampler, SamplingCrew
from celery_llama_worker.engine.plan import (
    Adapters,
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
    Save,
    Trim,
)
from celery_llama_worker.errors import EngineFault
from celery_llama_worker.settings import WorkerSettings

__all__ = ["LlamaEngine", "LlamaModel"]

logger = logging.getLogger(__name__)

# llama_decode's return values; below INVALID_BATCH the context cannot be trusted any more
_DONE, _NO_ROOM, _ABORTED, _INVALID_BATCH = 0, 1, 2, -1


class LlamaEngine:
    """Executes plans on a llama.cpp context. Engine thread only."""

    def __init__(self, model: LlamaModel, settings: WorkerSettings) -> None:
        """Build the context; raises StartupError if the memory does not suffice or the settings exclude each other."""
        self._model = model
        self._params = context_params(model, settings)
        self.limits = Limits(
            slots=settings.slots,
            cells_per_slot=settings.cells_per_job,
            batch_tokens=self._params.n_batch,
            can_trim=model.can_trim,
            spare_slots=spare_slots(model, settings),
            shared_cells=settings.memory == "unified",
            cell_bytes=cell_bytes(model, self._params),
        )
        if settings.ctx_per_slot > model.n_ctx_train:
            logger.warning(
                "ctx_per_slot is %d, the model was trained on %d tokens; longer texts will be poor",
                settings.ctx_per_slot,
                model.n_ctx_train,
            )
        warn_of_memory(model, self._params, settings.gpu_layers)
        self._batch = Batch(self._params.n_batch)
        self._crew = SamplingCrew(model.n_vocab, usable_cores())
        #: Cells of sequences that were set aside, by key.
        self._saved: dict[int, Any] = {}
        #: What the context computes with.
        self._adapters: Adapters = ()
        what = f"{settings.slots} slots with {settings.ctx_per_slot} cells each"
        self._context = LlamaContext(model, self._params, what)

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        """Carry out a plan, yielding a call's result as soon as it is there; stops after a call that lost the cells."""
        for operation in plan.operations:
            self._operate(operation)
        for call in plan.calls:
            begun = time.perf_counter()
            result = self._run(call)
            result.seconds = time.perf_counter() - begun
            yield result
            if result.error is not None and result.error.cells_lost:
                return

    def _operate(self, operation: CellOperation) -> None:
        match operation:
            case Trim(slot, tokens):
                self._trim(slot, tokens)
            case Copy(source, target, tokens):
                if source != target:
                    # Between partitions llama.cpp copies a whole sequence or asserts, so the tail is cut afterwards.
                    self._trim(target, 0)
                    lib.llama_memory_seq_cp(self._context.memory, source, target, -1, -1)
                self._trim(target, tokens)
            case Save(slot, key):
                size = lib.llama_state_seq_get_size(self._context.pointer, slot)
                state = (ctypes.c_uint8 * size)()
                if lib.llama_state_seq_get_data(self._context.pointer, state, size, slot) != size:
                    raise EngineFault("llama.cpp could not copy a slot's cells")
                self._saved[key] = state
            case Load(slot, key, keep):
                state = self._saved[key] if keep else self._saved.pop(key)
                if not lib.llama_state_seq_set_data(self._context.pointer, state, len(state), slot):
                    raise EngineFault("llama.cpp could not restore a slot's cells")
            case Drop(key):
                self._saved.pop(key, None)

    def _trim(self, slot: int, tokens: int) -> None:
        if not lib.llama_memory_seq_rm(self._context.memory, slot, tokens, -1):
            raise EngineFault(f"the cells of a {self._model.architecture} model cannot be cut at any position")

    def _run(self, call: Call) -> CallResult:
        # llama.cpp cuts a call wherever the slot numbers do not ascend one by one.
        pieces = sorted(call, key=_slot)
        self._use(pieces[0].adapters)
        self._batch.fill(pieces)
        code = self._decode(self._batch.struct)
        if code == _DONE:
            return self._sample(pieces)
        return CallResult(error=self._failed(code, pieces))

    def _use(self, adapters: Adapters) -> None:
        """Compute with these adapters from now on; a change makes llama.cpp plan its graphs anew."""
        if adapters == self._adapters:
            return
        count = len(adapters)
        pointers = (lib.llama_adapter_lora_p_ctypes * count)(*(self._model.adapters[name] for name, _ in adapters))
        scales = (ctypes.c_float * count)(*(scale for _, scale in adapters))
        lib.llama_set_adapters_lora(self._context.pointer, pointers, count, scales)
        self._adapters = adapters

    def _decode(self, batch: lib.llama_batch) -> int:
        """One `llama_decode`; tests override it to make it fail."""
        return int(lib.llama_decode(self._context.pointer, batch))

    def _failed(self, code: int, pieces: Sequence[Piece]) -> CallError:
        """Leave the cells as they were before the call, or make a new context where that is impossible."""
        if code == _NO_ROOM:
            return CallError("the context has no room for this call", cells_lost=False)
        if code == _INVALID_BATCH:
            return CallError(f"llama.cpp refused the batch{complaint()}", cells_lost=False)
        if code == _ABORTED and self._model.can_trim:
            for piece in pieces:  # an aborted call keeps the sub-batches that it had finished
                self._trim(piece.slot, piece.start)
            return CallError("the call was aborted", cells_lost=False)
        logger.error("llama_decode failed with code %d; building a new context", code)
        self._context.renew(f"llama_decode failed with code {code}")
        self._adapters = ()
        return CallError(f"llama_decode failed with code {code}", cells_lost=True)

    def _sample(self, pieces: Sequence[Piece]) -> CallResult:
        wanted = [piece for piece in pieces if piece.wants_logits]
        if not wanted:
            return CallResult()
        logits = dict(zip([piece.slot for piece in wanted], self._logits(len(wanted)), strict=True))
        rows = []
        for piece in wanted:
            if piece.sampler is not None:
                guide = None if piece.guide is None else (logits[piece.guide[0]], piece.guide[1])
                rows.append(Row(piece.slot, cast(RowSampler, piece.sampler), logits[piece.slot], guide))
        return self._crew.sample(rows)

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The call's logits without a copy, valid until the next call; shape (rows, n_vocab), in the pieces' order."""
        address = ctypes.cast(lib.llama_get_logits(self._context.pointer), ctypes.c_void_p).value
        if address is None:
            raise EngineFault("llama.cpp computed no logits")
        buffer = (ctypes.c_float * (rows * self._model.n_vocab)).from_address(address)
        return np.ctypeslib.as_array(buffer).reshape(rows, self._model.n_vocab)

    def close(self) -> None:
        """Free the context; before the model. Safe to call twice."""
        self._crew.close()
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _slot(piece: Piece) -> int:
    return piece.slot
