"""How settings become a llama.cpp context (layout, batch, threads, memory), and who owns it.

Settings are read on the main thread, at start; the context is the engine thread's.
"""

from __future__ import annotations

import logging
from typing import Any, Self

import llama_cpp.llama_cpp as lib

from celery_llama_worker.engine.llama.devices import found_devices, used_gpus
from celery_llama_worker.engine.llama.machine import available_bytes, usable_cores
from celery_llama_worker.engine.llama.model import LlamaModel, complaint
from celery_llama_worker.errors import EngineFault, StartupError
from celery_llama_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_FLASH_ATTENTION = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_CACHE_TYPES = {"f32": lib.GGML_TYPE_F32, "f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0}

_CELL_BYTES = {lib.GGML_TYPE_F32: 4.0, lib.GGML_TYPE_F16: 2.0, lib.GGML_TYPE_Q8_0: 34 / 32}


class LlamaContext:
    """A llama.cpp context and its cells; made anew when it can be trusted no more."""

    def __init__(self, model: LlamaModel, params: Any, what: str) -> None:
        """Make it; raises StartupError if the memory does not suffice. `what` is wanted, in words."""
        self._model, self._params = model, params
        self.pointer: Any = None
        #: None of an encoder, which has no cells.
        self.memory: Any = None
        if not self._make():
            advice = "try fewer or smaller slots, or flash_attention=auto"
            raise StartupError(f"llama.cpp cannot make a context of {what}{complaint()}; {advice}")

    def renew(self, why: str) -> None:
        """Free it and make an empty one; raises EngineFault if there can be none."""
        self.close()
        if not self._make():
            raise EngineFault(f"{why}, and no new context could be made")

    def _make(self) -> bool:
        self.pointer = lib.llama_init_from_model(self._model.pointer, self._params)
        self.memory = lib.llama_get_memory(self.pointer) if self.pointer else None
        return bool(self.pointer)

    def close(self) -> None:
        """Free it; before the model. Safe to call twice."""
        if self.pointer:
            lib.llama_free(self.pointer)
        self.pointer = self.memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spare_slots(model: LlamaModel, settings: WorkerSettings) -> int:
    """One slot more than sequences, so that the scheduler can always move one; where moving is possible and helps."""
    return 1 if model.can_trim and settings.memory == "partitioned" else 0


def warn_of_memory(model: LlamaModel, params: Any, gpu_layers: int) -> None:
    """Say before it happens why the system may end the process: on a CPU there is no failed allocation to report."""
    if used_gpus(found_devices(), gpu_layers):
        layers = lib.llama_model_n_layer(model.pointer)
        on_cpu = 0.0 if gpu_layers < 0 else max(0.0, 1 - gpu_layers / layers)  # on a GPU it fails, and is reported
    else:
        on_cpu = 1.0
    needed = on_cpu * params.n_ctx * cell_bytes(model, params)
    available = available_bytes()
    if available is not None and needed > available:
        logger.warning(
            "the cells need about %.1f GiB and %.1f GiB are free; lower slots or ctx_per_slot, or set cache_type=q8_0",
            needed / 2**30,
            available / 2**30,
        )


def cell_bytes(model: LlamaModel, params: Any) -> int:
    """What the keys and values of one token take in all layers, near enough for limits and warnings."""
    head = lib.llama_model_n_embd(model.pointer) // max(1, lib.llama_model_n_head(model.pointer))
    values = 2 * head * lib.llama_model_n_head_kv(model.pointer) * lib.llama_model_n_layer(model.pointer)
    return max(1, int(values * _CELL_BYTES[params.type_k]))


def context_params(model: LlamaModel, settings: WorkerSettings) -> Any:
    """llama.cpp's context parameters for these settings."""
    params = lib.llama_context_default_params()
    params.n_seq_max = settings.slots + spare_slots(model, settings)
    params.n_ctx = params.n_seq_max * settings.ctx_per_slot
    params.kv_unified = settings.memory == "unified"
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


def embedding_params(settings: WorkerSettings, batch_tokens: int) -> Any:
    """A context that pools whole texts, `batch_tokens` in a call."""
    params = lib.llama_context_default_params()
    params.embeddings = True  # the way of pooling is left open, so llama.cpp takes the file's
    params.n_seq_max = settings.slots
    # Texts of any lengths share a call, so they share the cells, and one call's are enough.
    params.kv_unified = params.swa_full = True
    params.n_ctx = params.n_batch = params.n_ubatch = batch_tokens
    params.n_threads = params.n_threads_batch = settings.threads or usable_cores()
    params.flash_attn_type = _FLASH_ATTENTION[settings.flash_attention]
    params.no_perf = True
    return params
