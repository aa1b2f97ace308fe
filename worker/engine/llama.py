"""The engine: one llama.cpp context, its cells and its batch. Owned by the engine thread, which alone may call it.

The cells are partitioned: every slot has its own, so a job can neither run out of cells in mid-generation nor see its
output change with its neighbours'. `llama_decode` and the samplers release the GIL.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from worker.engine.candidates import Candidates
from worker.engine.cores import usable_cores
from worker.engine.model import LlamaModel, complaint
from worker.engine.plan import Call, CallError, CallResult, Copy, Limits, Piece, Plan, Trim
from worker.engine.sampling import LlamaSampler
from worker.errors import EngineFault, StartupError
from worker.settings import WorkerSettings

__all__ = ["LlamaEngine", "LlamaModel"]

logger = logging.getLogger(__name__)

_FLASH_ATTENTION = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_CACHE_TYPES = {"f32": lib.GGML_TYPE_F32, "f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0}

# llama_decode's return values; below INVALID_BATCH the context cannot be trusted any more
_DONE, _NO_ROOM, _ABORTED, _INVALID_BATCH = 0, 1, 2, -1


class LlamaEngine:
    """Executes plans on a llama.cpp context. Engine thread only."""

    def __init__(self, model: LlamaModel, settings: WorkerSettings) -> None:
        """Build the context; raises StartupError if the memory does not suffice or the settings exclude each other."""
        self._model = model
        self._params = _context_params(model, settings)
        self.limits = Limits(
            slots=settings.slots,
            cells_per_slot=settings.ctx_per_slot,
            batch_tokens=self._params.n_batch,
            can_trim=model.can_trim,
            spare_slots=_spare_slots(model),
        )
        if settings.ctx_per_slot > model.n_ctx_train:
            logger.warning(
                "ctx_per_slot is %d, the model was trained on %d tokens; longer texts will be poor",
                settings.ctx_per_slot,
                model.n_ctx_train,
            )
        self._batch = _Batch(self._params.n_batch)
        self._candidates = Candidates(model.n_vocab)
        self._context: Any = None
        self._memory: Any = None
        if not self._open():
            raise StartupError(
                f"llama.cpp cannot make a context of {settings.slots} slots with {settings.ctx_per_slot} cells each"
                f"{complaint()}; try fewer slots or cells, or flash_attention=auto"
            )

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        """Carry out a plan, yielding a call's result as soon as it is there; stops after a call that lost the cells."""
        for operation in plan.operations:
            self._operate(operation)
        for call in plan.calls:
            result = self._run(call)
            yield result
            if result.error is not None and result.error.cells_lost:
                return

    def _operate(self, operation: Copy | Trim) -> None:
        if isinstance(operation, Trim):
            self._trim(operation.slot, operation.tokens)
            return
        if operation.source != operation.target:
            # Between partitions llama.cpp copies a whole sequence or asserts, so the tail is cut afterwards.
            self._trim(operation.target, 0)
            lib.llama_memory_seq_cp(self._memory, operation.source, operation.target, -1, -1)
        self._trim(operation.target, operation.tokens)

    def _trim(self, slot: int, tokens: int) -> None:
        if not lib.llama_memory_seq_rm(self._memory, slot, tokens, -1):
            raise EngineFault(f"the cells of a {self._model.architecture} model cannot be cut at any position")

    def _run(self, call: Call) -> CallResult:
        # llama.cpp cuts a call wherever the slot numbers do not ascend one by one.
        pieces = sorted(call, key=_slot)
        self._batch.fill(pieces)
        code = self._decode(self._batch.struct)
        if code == _DONE:
            return self._sample(pieces)
        return CallResult(error=self._failed(code, pieces))

    def _decode(self, batch: lib.llama_batch) -> int:
        """One `llama_decode`; tests override it to make it fail."""
        return int(lib.llama_decode(self._context, batch))

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
        self._free()
        if not self._open():
            raise EngineFault(f"llama_decode failed with code {code}, and no new context could be made")
        return CallError(f"llama_decode failed with code {code}", cells_lost=True)

    def _sample(self, pieces: Sequence[Piece]) -> CallResult:
        result = CallResult()
        sampling = [piece for piece in pieces if piece.sampler is not None]
        if not sampling:
            return result
        for piece, row in zip(sampling, self._logits(len(sampling)), strict=True):
            try:
                result.sampled[piece.slot] = cast(LlamaSampler, piece.sampler).sample(row, self._candidates)
            except Exception as error:
                logger.warning("sampling failed in slot %d: %s", piece.slot, error)
                result.faults[piece.slot] = str(error)
        return result

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        """The call's logits without a copy, valid until the next call; shape (rows, n_vocab), in the pieces' order."""
        address = ctypes.cast(lib.llama_get_logits(self._context), ctypes.c_void_p).value
        if address is None:
            raise EngineFault("llama.cpp computed no logits")
        buffer = (ctypes.c_float * (rows * self._model.n_vocab)).from_address(address)
        return np.ctypeslib.as_array(buffer).reshape(rows, self._model.n_vocab)

    def _open(self) -> bool:
        self._context = lib.llama_init_from_model(self._model.pointer, self._params)
        self._memory = lib.llama_get_memory(self._context) if self._context else None
        return bool(self._context)

    def _free(self) -> None:
        if self._context:
            lib.llama_free(self._context)
        self._context = self._memory = None

    def close(self) -> None:
        """Free the context; before the model. Safe to call twice."""
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Batch:
    """The one `llama_batch`, over numpy arrays: a few slice assignments fill it, 10 to 30 us for 32 rows."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._slots = np.zeros(capacity, dtype=np.int32)
        self._outputs = np.zeros(capacity, dtype=np.int8)
        self._ones = np.ones(capacity, dtype=np.int32)
        # llama_batch wants a pointer to each row's list of sequences; every row has one sequence, so they never change
        self._pointers = self._slots.ctypes.data + np.arange(capacity, dtype=np.uint64) * self._slots.itemsize
        self._range = np.arange(capacity, dtype=np.int32)
        self.struct = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, lib.llama_token),
            embd=None,
            pos=_pointer(self._positions, lib.llama_pos),
            n_seq_id=_pointer(self._ones, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Lay out the pieces one after another; logits for the last row of each piece that samples."""
        if all(len(piece.tokens) == 1 for piece in pieces):
            rows = len(pieces)
            self._tokens[:rows] = [piece.tokens[0] for piece in pieces]
            self._positions[:rows] = [piece.start for piece in pieces]
            self._slots[:rows] = [piece.slot for piece in pieces]
            self._outputs[:rows] = [piece.sampler is not None for piece in pieces]
            self.struct.n_tokens = rows
            return
        end = 0
        for piece in pieces:
            start, end = end, end + len(piece.tokens)
            self._tokens[start:end] = piece.tokens
            np.add(self._range[: end - start], piece.start, out=self._positions[start:end])
            self._slots[start:end] = piece.slot
            self._outputs[start:end] = 0
            self._outputs[end - 1] = piece.sampler is not None
        self.struct.n_tokens = end


def _slot(piece: Piece) -> int:
    return piece.slot


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _spare_slots(model: LlamaModel) -> int:
    """One slot more than sequences, so that the scheduler can always move one; where cells can be copied at all."""
    return 1 if model.can_trim else 0


def _context_params(model: LlamaModel, settings: WorkerSettings) -> Any:
    params = lib.llama_context_default_params()
    params.n_seq_max = settings.slots + _spare_slots(model)
    params.n_ctx = params.n_seq_max * settings.ctx_per_slot
    params.kv_unified = False
    params.n_batch = max(settings.prefill_tokens, settings.chunk_tokens, params.n_seq_max)
    # A call is computed in one piece: where llama.cpp cut it would depend on how many sequences it has.
    params.n_ubatch = params.n_batch
    params.n_outputs_max = params.n_seq_max  # a row of logits for each slot; with fewer llama.cpp ends the process
    params.n_threads = params.n_threads_batch = settings.threads or usable_cores()
    params.flash_attn_type = _FLASH_ATTENTION[settings.flash_attention]
    params.type_k = params.type_v = _CACHE_TYPES[settings.cache_type]
    params.swa_full = model.can_trim
    params.no_perf = True
    return params
