"""The probe: what it reports, and that it leaves nothing behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.llama.engine import LlamaEngine, LlamaModel
from celery_llama_worker.engine.llama.sampling import make_sampler
from celery_llama_worker.engine.plan import CallError, Limits, Trim
from celery_llama_worker.engine.probe import probe
from celery_llama_worker.errors import EngineFault
from celery_llama_worker.settings import WorkerSettings
from tests.decoding import generate, operate, read
from tests.fakes import FakeEngine
from tests.tiny_model import tiny_model


class UnevenEngine(LlamaEngine):
    """Logits that depend on the number of rows, as float kernels' do."""

    def _logits(self, rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        return super()._logits(rows) + np.float32(1e-3 * self._batch.struct.n_tokens)


def settings(slots: int = 8) -> WorkerSettings:
    return WorkerSettings(slots=slots, ctx_per_slot=256, chunk_tokens=32, prefill_tokens=128, threads=1)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model()) as model:
        yield model


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_quantised_weights_on_a_cpu_are_reproducible(model: LlamaModel, slots: int) -> None:
    with LlamaEngine(model, settings(slots)) as engine:
        report = probe(engine, model.n_vocab, chunk_tokens=32)

    assert report.reproducible


def test_logits_that_depend_on_the_batch_are_found(model: LlamaModel) -> None:
    with UnevenEngine(model, settings()) as engine:
        report = probe(engine, model.n_vocab, chunk_tokens=32)

    assert dataclasses.replace(report, seconds=0.0) == dataclasses.replace(
        report, decode=False, prefill=False, seconds=0.0
    )
    assert not report.reproducible


def test_every_slot_is_empty_afterwards(model: LlamaModel) -> None:
    greedy = make_sampler(GenerateJob(prompt="x", temperature=0), model, seed=1)
    with LlamaEngine(model, settings()) as engine:
        before = generate(engine, 0, [40, 41], greedy, 5)
        operate(engine, Trim(0, 0))
        probe(engine, model.n_vocab, chunk_tokens=32)

        for slot in range(9):
            assert read(engine, slot, [40, 41], greedy) == before[0]


def test_a_device_that_cannot_decode_is_a_fault() -> None:
    engine = FakeEngine(Limits(slots=4, cells_per_slot=256, batch_tokens=128, can_trim=True))
    engine.failures.append(CallError("no device", cells_lost=True))

    with pytest.raises(EngineFault, match="cannot decode: no device"):
        probe(engine, 251, chunk_tokens=32)
