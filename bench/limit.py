"""The limit: a bare loop over `llama_decode` and `llama_sampler_sample`, with nothing around it.

Partitioned layout, prompts read in calls of `batch_tokens`, then one call a step for all sequences. What the queue adds
to this is what the queue costs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import llama_cpp.llama_cpp as lib
import numpy as np

from bench.work import Prompt, Work
from celery_llama_worker.engine.llama.machine import usable_cores
from celery_llama_worker.engine.llama.model import LlamaModel


@dataclass
class Run:
    """One pass over some work."""

    seconds: float = 0.0
    #: The part of it after the prompts have been read.
    decode_seconds: float = 0.0
    tokens: int = 0
    decoded_tokens: int = 0

    @property
    def decoded_per_second(self) -> float:
        """Tokens of decode steps over the time of those alone."""
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds else 0.0


class BareLoop:
    """A context and the loop over it. One thread."""

    def __init__(
        self, model: LlamaModel, slots: int, *, ctx_per_slot: int = 1024, batch_tokens: int = 512, threads: int = 0
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_seq_max = slots
        params.n_ctx = slots * ctx_per_slot
        params.kv_unified = False
        params.n_batch = params.n_ubatch = max(batch_tokens, slots)
        params.n_outputs_max = slots
        params.n_threads = params.n_threads_batch = threads or usable_cores()
        params.no_perf = True
        self._slots = slots
        self._batch_tokens = params.n_batch
        self._context: Any = lib.llama_init_from_model(model.pointer, params)
        if not self._context:
            raise MemoryError(f"no context of {slots} slots")
        self._memory = lib.llama_get_memory(self._context)
        self._sampler: Any = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self._sampler, lib.llama_sampler_init_greedy())
        self._batch = lib.llama_batch_init(self._batch_tokens, 0, 1)

    def run(self, work: Work) -> Run:
        """All jobs, as many at a time as there are slots."""
        run = Run()
        begun = time.perf_counter()
        for start in range(0, len(work.prompts), self._slots):
            self._wave(work.prompts[start : start + self._slots], work.max_tokens, run)
        run.seconds = time.perf_counter() - begun
        return run

    def _wave(self, prompts: Sequence[Prompt], max_tokens: int, run: Run) -> None:
        lib.llama_memory_clear(self._memory, False)
        texts = [[token] for token in self._read(prompts)]
        begun = time.perf_counter()
        batch, sequences = self._batch, len(prompts)
        token, position, outputs = (_view(pointer, sequences) for pointer in (batch.token, batch.pos, batch.logits))
        outputs[:] = 1
        for slot in range(sequences):
            batch.n_seq_id[slot], batch.seq_id[slot][0] = 1, slot
        batch.n_tokens = sequences
        position[:] = [len(prompt) for prompt in prompts]
        for _ in range(max_tokens - 1):
            token[:] = [text[-1] for text in texts]
            self._decode()
            for slot, text in enumerate(texts):
                text.append(lib.llama_sampler_sample(self._sampler, self._context, slot))
            position += 1
        run.decode_seconds += time.perf_counter() - begun
        run.decoded_tokens += sequences * (max_tokens - 1)
        run.tokens += sequences * max_tokens

    def _read(self, prompts: Sequence[Prompt]) -> list[int]:
        """Read the prompts, in whole, as many as a call takes; returns the first token of each."""
        first: list[int] = []
        waiting = list(enumerate(prompts))
        while waiting:
            room, rows, ends = self._batch_tokens, 0, []
            while waiting and len(waiting[0][1]) <= room:
                slot, prompt = waiting.pop(0)
                for at, token in enumerate(prompt):
                    self._row(rows, token, at, slot, last=at == len(prompt) - 1)
                    rows += 1
                room -= len(prompt)
                ends.append(rows - 1)
            if not ends:
                raise ValueError(f"a prompt is longer than {self._batch_tokens} tokens")
            self._batch.n_tokens = rows
            self._decode()
            first += [lib.llama_sampler_sample(self._sampler, self._context, end) for end in ends]
        return first

    def _row(self, row: int, token: int, position: int, slot: int, *, last: bool) -> None:
        batch = self._batch
        batch.token[row], batch.pos[row], batch.logits[row] = token, position, last
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, slot

    def _decode(self) -> None:
        code = lib.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")

    def close(self) -> None:
        """Free what llama.cpp holds."""
        lib.llama_sampler_free(self._sampler)
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _view(pointer: Any, length: int) -> np.ndarray[Any, Any]:
    """A numpy array over llama.cpp's own memory."""
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    assert address is not None
    return np.ctypeslib.as_array((pointer._type_ * length).from_address(address))
