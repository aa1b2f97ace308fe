"""The sampling crew: a step's rows sampled side by side. Owned by the engine; called on its thread, which takes part.

A sampler touches nothing but its own state and the row it is given, and llama.cpp lets go of the GIL meanwhile. A chain
goes over the whole vocabulary, about 0.1 ms a row for 49,000 tokens: little on a CPU, much beside a GPU's step.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from celery_llama_worker.engine.llama.candidates import Candidates, Logits
from celery_llama_worker.engine.llama.sampling import guided
from celery_llama_worker.engine.llama.time_slice import restore_slice
from celery_llama_worker.engine.plan import CallResult, Sampled

logger = logging.getLogger(__name__)

#: Fewer rows than this are not worth another thread's waking up.
_ROWS_PER_THREAD = 4
_MOST_THREADS = 8


class RowSampler(Protocol):
    """Chooses a token from a row of logits (`sampling.LlamaSampler`)."""

    @property
    def quick(self) -> bool:
        """Whether that takes so little time that it is not worth another thread."""

    def sample(self, row: Logits, candidates: Candidates) -> Sampled:
        """Choose the token; `candidates` is this thread's, to work in."""


class Row(NamedTuple):
    """What a sequence samples from."""

    slot: int
    sampler: RowSampler
    #: Shape (n_vocab,), as are the negative prompt's.
    logits: Logits
    #: Classifier-free guidance: the negative prompt's logits, and the scale.
    guide: tuple[Logits, float] | None = None


class SamplingCrew:
    """Samples rows on as many threads as they are worth."""

    def __init__(self, n_vocab: int, cores: int) -> None:
        threads = max(1, min(cores, _MOST_THREADS))
        self._candidates = [Candidates(n_vocab) for _ in range(threads)]
        # ggml's threads still spin when these wake up, and must make way for them.
        self._helpers = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="sampler", initializer=restore_slice)

    def sample(self, rows: Sequence[Row]) -> CallResult:
        """Choose every row's token; what goes wrong with one does not concern the others."""
        own, *others = self._shares(rows)
        answers = [
            self._helpers.submit(_sample, share, candidates)
            for share, candidates in zip(others, self._candidates[1:], strict=False)
        ]
        result = _sample(own, self._candidates[0])
        for answer in answers:
            part = answer.result()
            result.sampled.update(part.sampled)
            result.faults.update(part.faults)
        return result

    def _shares(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Who samples what; rows that only want their likeliest token stay on the engine thread."""
        quick = [row for row in rows if row.sampler.quick]
        slow = [row for row in rows if not row.sampler.quick]
        threads = max(1, min(len(self._candidates), len(slow) // _ROWS_PER_THREAD))
        shares = [slow[start::threads] for start in range(threads)]
        shares[0] += quick
        return shares

    def close(self) -> None:
        """End the threads; safe to call twice."""
        self._helpers.shutdown()


def _sample(rows: Sequence[Row], candidates: Candidates) -> CallResult:
    result = CallResult()
    for row in rows:
        try:
            logits = row.logits if row.guide is None else guided(row.logits, *row.guide)
            result.sampled[row.slot] = row.sampler.sample(logits, candidates)
        except Exception as error:  # whatever it is, the neighbours are not concerned
            logger.warning("sampling failed in slot %d: %s", row.slot, error)
            result.faults[row.slot] = str(error)
    return result
