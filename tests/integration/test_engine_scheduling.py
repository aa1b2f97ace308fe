"""GenerateScheduler and llama.cpp together on the tiny model: what is read, what is shared, what if cells run short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from celery_llama.protocol.delivered import DeliveredChoice
from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.llama.sampling import LlamaSampler
from celery_llama_worker.engine.outputs import Ended, Output, Text
from celery_llama_worker.engine.preparing import preparer as preparer_module
from celery_llama_worker.engine.preparing.preparer import GeneratePreparer
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.errors import EngineFault
from celery_llama_worker.settings import WorkerSettings
from tests.tiny_model import tiny_model


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model()) as loaded:
        yield loaded


def finish(
    model: LlamaModel, settings: WorkerSettings, jobs: Sequence[dict[str, Any]]
) -> tuple[GenerateScheduler, list[Output]]:
    """Run all jobs to their end; the scheduler, for its figures, and what it said."""
    preparer = GeneratePreparer(model, settings, reproducible=False)
    outputs: list[Output] = []
    with LlamaEngine(model, settings) as engine:
        scheduler = GenerateScheduler(
            engine.limits, model, chunk_tokens=settings.chunk_tokens, prefill_tokens=settings.prefill_tokens
        )
        for number, fields in enumerate(jobs):
            job = GenerateJob.model_validate({"temperature": 0.0, "ignore_eos": True, **fields})
            outputs += scheduler.add(preparer.prepare(f"job-{number}", 1, job, {}, None).attempt)
        while not scheduler.idle:
            plan = scheduler.plan(0.0)
            for call, result in zip(plan.calls, engine.execute(plan), strict=True):
                outputs += scheduler.commit(call, result)
    return scheduler, outputs


def generated(outputs: Sequence[Output], job_id: str) -> int:
    """How many tokens a job got."""
    return sum(len(output.tokens) for output in outputs if isinstance(output, Text) and output.job_id == job_id)


def test_jobs_over_one_long_beginning_read_it_once(model: LlamaModel) -> None:
    settings = WorkerSettings(slots=32, ctx_per_slot=704, chunk_tokens=64, prefill_tokens=512, threads=1)
    beginning = [5 + n % 90 for n in range(512)]

    scheduler, outputs = finish(
        model, settings, [{"prompt": [*beginning, 7, 8 + n], "max_tokens": 4} for n in range(32)]
    )

    own = 2
    assert scheduler.counters.read_tokens <= 512 + 32 * own
    assert scheduler.counters.copied_tokens == 31 * 512
    assert all(generated(outputs, f"job-{n}") == 4 for n in range(32))


def test_without_a_common_beginning_nothing_is_copied(model: LlamaModel) -> None:
    settings = WorkerSettings(slots=4, ctx_per_slot=256, chunk_tokens=64, threads=1)

    scheduler, _ = finish(model, settings, [{"prompt": [5 + n] * 130, "max_tokens": 2} for n in range(4)])

    assert scheduler.counters.copied_tokens == 0
    assert scheduler.counters.read_tokens == 4 * 130


def test_in_one_pool_jobs_that_want_four_times_the_cells_all_complete(model: LlamaModel) -> None:
    settings = WorkerSettings(memory="unified", slots=8, ctx_per_slot=64, chunk_tokens=16, prefill_tokens=64, threads=1)
    cells = 8 * 64

    scheduler, outputs = finish(
        model, settings, [{"prompt": [9 + n] * 20, "max_tokens": 4 * cells // 16} for n in range(16)]
    )

    assert [generated(outputs, f"job-{n}") for n in range(16)] == [4 * cells // 16] * 16
    assert {output.reason for output in outputs if isinstance(output, Ended)} == {"done"}
    assert scheduler.counters.set_aside > 0


def test_in_one_pool_a_job_may_be_longer_than_a_slot(model: LlamaModel) -> None:
    settings = WorkerSettings(memory="unified", slots=8, ctx_per_slot=64, chunk_tokens=16, prefill_tokens=64, threads=1)

    _, outputs = finish(model, settings, [{"prompt": [9] * 300, "max_tokens": 100}])

    assert generated(outputs, "job-0") == 100


def test_a_choice_that_an_earlier_attempt_completed_gets_no_token_more(model: LlamaModel) -> None:
    settings = WorkerSettings(slots=2, ctx_per_slot=64, threads=1)
    preparer = GeneratePreparer(model, settings, reproducible=False)
    job = GenerateJob(prompt=[9] * 5, n=2, max_tokens=6, temperature=0.0, ignore_eos=True)
    said = {0: DeliveredChoice(tokens=[7, 8], finish_reason="stop"), 1: DeliveredChoice(tokens=[7, 8])}

    first, second = preparer.prepare("job", 2, job, said, None).attempt.sequences

    assert (first.finish_reason, second.finish_reason) == ("stop", None)


def test_a_job_of_which_one_choice_cannot_go_on_leaves_nothing_in_llama_cpp(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[LlamaSampler] = []
    monkeypatch.setattr(LlamaSampler, "close", lambda self: closed.append(self))
    preparer = GeneratePreparer(model, WorkerSettings(slots=3, ctx_per_slot=64, threads=1), reproducible=False)
    job = GenerateJob(prompt=[9] * 5, n=3, max_tokens=6, grammar='root ::= "abc"')
    allowed, forbidden = (model.tokenize(text, add_special=False, parse_special=False) for text in ("a", "x"))
    said = {0: DeliveredChoice(tokens=allowed), 1: DeliveredChoice(tokens=forbidden)}

    with pytest.raises(EngineFault, match="does not follow the grammar"):
        preparer.prepare("job", 2, job, said, None)

    assert len(closed) == 2


def test_a_result_with_more_log_probabilities_than_redis_can_hold_is_refused(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = GeneratePreparer(model, WorkerSettings(slots=2, ctx_per_slot=64, threads=1), reproducible=False)
    job = GenerateJob(prompt=[9] * 5, n=2, max_tokens=6, logprobs=True, top_logprobs=4)
    monkeypatch.setattr(preparer_module, "_MOST_LOGPROBS", 2 * 6 * 5)
    preparer.prepare("job", 1, job, {}, None)
    monkeypatch.setattr(preparer_module, "_MOST_LOGPROBS", 2 * 6 * 5 - 1)

    with pytest.raises(InvalidJob, match="60 log-probabilities"):
        preparer.prepare("job", 1, job, {}, None)
