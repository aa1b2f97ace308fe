"""Finds out whether a job's output depends on its neighbours, on this model and device. Runs once, at the start.

It holds where a row's arithmetic does not depend on how many rows are computed with it: quantised weights on a CPU.
Float kernels, and most GPU kernels, are chosen by the number of rows, and then sums are rounded differently.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from celery_llama_worker.engine.plan import Adapters, Call, Engine, Piece, Plan, Sampled, Trim
from celery_llama_worker.errors import EngineFault

_STEPS = 3


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe found."""

    #: Decoding gives the same logits alone and among others, bit for bit.
    decode: bool
    #: So does reading a prompt in whole chunks, alone and together with others' chunks.
    prefill: bool
    seconds: float

    @property
    def reproducible(self) -> bool:
        """Whether a job's output is a function of the job alone."""
        return self.decode and self.prefill


class _Recorder:
    """Stands where a sampler stands, and keeps the logits."""

    quick = True

    def __init__(self) -> None:
        self.rows: list[npt.NDArray[np.float32]] = []

    def sample(self, row: npt.NDArray[np.float32], _candidates: object) -> Sampled:
        self.rows.append(row.copy())
        return Sampled(0)

    def accept(self, token: int) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Nothing is held."""


def probe(engine: Engine, n_vocab: int, chunk_tokens: int, adapters: Adapters = ()) -> ProbeReport:
    """Decode the same sequence alone and among others and compare; leaves every slot empty.

    `chunk_tokens` is the scheduler's size of chunks; `adapters` are applied to all sequences. Raises EngineFault if the
    device cannot decode at all.
    """
    # On a thread that ends: libgomp counts the helpers of every living thread that has computed, and where there are
    # more than cores, they sleep at each operation instead of spinning: a step of 8 rows took half as long again.
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as thread:
        return thread.submit(_probe, engine, n_vocab, chunk_tokens, adapters).result()


def _probe(engine: Engine, n_vocab: int, chunk_tokens: int, adapters: Adapters) -> ProbeReport:
    begun = time.perf_counter()
    slots = min(engine.limits.slots, 5)
    # as many chunks together as the scheduler may put into a call, but few enough to stay quick
    together = max(1, min(slots, engine.limits.batch_tokens // chunk_tokens))
    room = engine.limits.cells_per_slot - _STEPS
    randomness = random.Random(0)
    prompts = [[randomness.randrange(n_vocab) for _ in range(min(chunk_tokens, room))] for _ in range(slots)]
    alone = _run(engine, prompts[:1], 1, adapters)
    among = _run(engine, prompts, together, adapters)
    same = [np.array_equal(one, other) for one, other in zip(alone, among, strict=True)]
    return ProbeReport(decode=all(same[1:]), prefill=same[0], seconds=time.perf_counter() - begun)


def _run(
    engine: Engine, prompts: Sequence[Sequence[int]], together: int, adapters: Adapters
) -> list[npt.NDArray[np.float32]]:
    """Read prompts in calls of `together` chunks, then decode all; the first one's logits after each of its calls."""
    recorder = _Recorder()
    pieces = [
        Piece(slot, 0, tokens, recorder if slot == 0 else None, adapters=adapters)
        for slot, tokens in enumerate(prompts)
    ]
    calls: list[Call] = [pieces[at : at + together] for at in range(0, len(pieces), together)]
    for step in range(_STEPS):
        row = [
            Piece(slot, len(prompt) + step, prompt[step : step + 1], None, adapters=adapters)
            for slot, prompt in enumerate(prompts)
        ]
        calls.append([row[0]._replace(sampler=recorder), *row[1:]])
    results = list(engine.execute(Plan(calls=calls)))
    list(engine.execute(Plan(operations=[Trim(slot, 0) for slot in range(len(prompts))])))
    for result in results:
        if result.error is not None:
            raise EngineFault(f"the device cannot decode: {result.error.message}")
    return recorder.rows
