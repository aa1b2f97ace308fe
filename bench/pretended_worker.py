"""A worker on a pretended device: all of the product, but for what a GPU would compute.

`BENCH_DEVICE="10 read" python -m bench.pretended_worker start ...` computes each call in 10 ms without a processor. As
with a GPU, `llama_decode` comes back at once and the wait is in the first read of what was computed (`read`), or else
the wait is in `llama_decode` (`decode`). Logits are prepared once; everything on the host is real. Engine thread.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.model import FIRST_BYTE_TOKEN, FIRST_WORD_TOKEN
from bench.observed_worker import ObservedEngine, book, work
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.settings import WorkerSettings

#: Rows of logits that are prepared beyond a call's: so many steps follow until a slot sees the same row again.
_MORE_ROWS = 61
_JSON = b'"{}[]:,0123456789 '


class PretendedEngine(ObservedEngine):
    """Waits in place of computing. The context is real, but its cells stay empty."""

    def __init__(self, model: LlamaModel, settings: WorkerSettings) -> None:
        super().__init__(model, settings)
        milliseconds, where = os.environ["BENCH_DEVICE"].split()
        self._call_ns, self._waits_in_decode = int(float(milliseconds) * 1e6), where == "decode"
        self._prepared = _prepare(self._params.n_outputs_max + _MORE_ROWS, model)
        self._at = 0
        #: When the device has computed what it was given (`time.perf_counter_ns`).
        self._ready_at_ns = time.perf_counter_ns()

    def _decode(self, batch: Any) -> int:
        now = time.perf_counter_ns()
        book.counts["calls"] += 1
        book.wall_ns["device busy"] += self._call_ns
        book.wall_ns["device idle"] += max(0, now - self._ready_at_ns)
        self._ready_at_ns = max(now, self._ready_at_ns) + self._call_ns
        if self._waits_in_decode:
            self._wait()
        return 0

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        self._wait()
        self._at = (self._at + 1) % _MORE_ROWS
        return self._prepared[self._at : self._at + rows]

    def _wait(self) -> None:
        with book.clock("llama_decode"):
            if (left := self._ready_at_ns - time.perf_counter_ns()) > 0:
                time.sleep(left / 1e9)


def _prepare(rows: int, model: LlamaModel) -> npt.NDArray[np.float32]:
    """Logits, shape (rows, n_vocab), in which as in a model's a few tokens stand out; often JSON's, never the end."""
    chance = np.random.default_rng(0)
    logits = chance.standard_normal((rows, model.n_vocab), dtype=np.float32)
    for row in logits:
        row[chance.integers(FIRST_WORD_TOKEN, model.n_vocab, 12)] += chance.uniform(4, 9, 12)
        row[FIRST_BYTE_TOKEN + np.frombuffer(_JSON, np.uint8).astype(int)] += chance.uniform(0, 8, len(_JSON))
    logits[:, list(model.end_tokens)] = -100
    return logits


if __name__ == "__main__":
    work(PretendedEngine)
