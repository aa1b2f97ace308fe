"""The embedding engine: one llama.cpp context that pools. Owned by the engine thread, which alone may call it.

How a text's vectors become one (mean, first or last token) is in the model's file. Encoders such as BERT have no cells;
decoders have, and forget them before each call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Self

import llama_cpp.llama_cpp as lib
import numpy as np

from celery_llama_worker.engine.llama.batch import Batch
from celery_llama_worker.engine.llama.context import LlamaContext, embedding_params
from celery_llama_worker.engine.llama.model import LlamaModel, complaint
from celery_llama_worker.engine.plan import Call, CallError, CallResult, Limits, Plan
from celery_llama_worker.errors import EngineFault, StartupError
from celery_llama_worker.settings import WorkerSettings


class LlamaEmbedder:
    """Executes plans of whole texts on a llama.cpp context. Engine thread only."""

    def __init__(self, model: LlamaModel, settings: WorkerSettings) -> None:
        """Build the context; raises StartupError if the memory does not suffice or a setting means nothing here."""
        if model.adapters:
            raise StartupError(f"{model.name} is an embedding model, and those run without LoRA adapters here")
        self._model = model
        # Positions beyond what the model was trained on may not even exist in it.
        longest = min(settings.ctx_per_slot, model.n_ctx_train)
        self._params = embedding_params(settings, max(settings.prefill_tokens, longest))
        self.limits = Limits(
            slots=settings.slots, cells_per_slot=longest, batch_tokens=self._params.n_batch, can_trim=False
        )
        self._batch = Batch(self._params.n_batch)
        self._context = LlamaContext(model, self._params, f"{self._params.n_ctx} cells")

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        """Carry out a plan, yielding a call's result as soon as it is there."""
        for call in plan.calls:
            begun = time.perf_counter()
            result = self._run(call)
            result.seconds = time.perf_counter() - begun
            yield result

    def _run(self, call: Call) -> CallResult:
        self._batch.fill(call, every_output=True)
        if self._context.memory:
            lib.llama_memory_clear(self._context.memory, False)
        code = self._compute(self._batch.struct)
        if code == 0:
            return CallResult(vectors={piece.slot: self._vector(piece.slot) for piece in call})
        if code < -1:
            self._context.renew(f"llama.cpp failed with code {code}")
        return CallResult(error=CallError(f"llama.cpp failed with code {code}{complaint()}", cells_lost=code < -1))

    def _compute(self, batch: lib.llama_batch) -> int:
        """One call of llama.cpp; tests override it to make it fail."""
        compute = lib.llama_decode if self._context.memory else lib.llama_encode
        return int(compute(self._context.pointer, batch))

    def _vector(self, slot: int) -> Any:
        values = lib.llama_get_embeddings_seq(self._context.pointer, slot)
        if not values:
            raise EngineFault("llama.cpp computed no embedding")
        return np.ctypeslib.as_array(values, shape=(self._model.n_embed,)).copy()

    def close(self) -> None:
        """Free the context; before the model. Safe to call twice."""
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
