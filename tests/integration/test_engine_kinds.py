"""Models whose cells cannot be cut at any position: recurrent, hybrid, with sliding windows. Steps driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from celery_llama.protocol.delivered import DeliveredChoice
from celery_llama.protocol.jobs import parse_generate_job
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.plan import Copy, Piece, Plan, Save
from celery_llama_worker.engine.preparing.preparer import GeneratePreparer
from celery_llama_worker.engine.probe import probe
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.engine.scheduling.sequence import Attempt
from celery_llama_worker.settings import WorkerSettings
from tests.stepping import tokens_of_jobs
from tests.tiny_kinds import WINDOW, write_tiny_hybrid, write_tiny_mamba, write_tiny_windows

KINDS: dict[str, Callable[[Path], Path]] = {
    "recurrent": write_tiny_mamba,
    "hybrid": write_tiny_hybrid,
    "windows": write_tiny_windows,
}
#: More cells than llama.cpp keeps of a window (256 at least), so that old ones are dropped.
SETTINGS = WorkerSettings(slots=4, ctx_per_slot=1024, chunk_tokens=16, prefill_tokens=64, threads=1)
TEXT = "the thin king and the other one ate an apple in the inn. "
JOBS: dict[str, dict[str, Any]] = {
    "short": {"prompt": "the thin"},
    "long": {"prompt": TEXT * 3, "max_tokens": 40},
    "same": {"prompt": TEXT * 3 + "he", "max_tokens": 20},
    "three": {"prompt": TEXT, "n": 3, "temperature": 0.9},
    "guided": {"prompt": TEXT, "guidance": {"negative_prompt": TEXT[::-1], "scale": 1.7}},
    "urgent": {"prompt": TEXT[5:], "priority": 0, "n": 3, "temperature": 0.5},
    "fire": {"prompt": TEXT[3:], "priority": 0},
    "endless": {"prompt": TEXT * 6, "max_tokens": 150, "priority": 9},
    "last": {"prompt": "and", "priority": 9, "max_tokens": 30},
}
ARRIVALS = {
    0: ["short", "long", "endless"],
    2: ["last", "same"],
    4: ["fire"],
    6: ["three", "guided"],
    12: ["urgent"],
    25: ["long+", "short+"],
}


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = KINDS[request.param](tmp_path_factory.mktemp("kinds") / "model.gguf")
    with LlamaModel(path) as model:
        yield model


class Watching(LlamaEngine):
    """Keeps the plans."""

    plans: list[Plan]

    def execute(self, plan: Plan) -> Iterator[Any]:
        self.plans.append(plan)
        return super().execute(plan)


def attempt(preparer: GeneratePreparer, name: str, delivered: dict[int, list[int]] | None = None) -> Attempt:
    fields = {"temperature": 0.0, "max_tokens": 16, "seed": 7, "ignore_eos": True, **JOBS[name.rstrip("+")]}
    said = {choice: DeliveredChoice(tokens=tokens) for choice, tokens in (delivered or {}).items()}
    return preparer.prepare(name, 1, parse_generate_job(fields), said, None).attempt


class Run:
    """Jobs that came and went on a model, and what was said and done."""

    def __init__(
        self,
        model: LlamaModel,
        arrivals: Mapping[int, list[str]],
        ends: Mapping[int, list[str]] | None = None,
        settings: WorkerSettings = SETTINGS,
    ) -> None:
        preparer = GeneratePreparer(model, settings, reproducible=True)
        with Watching(model, settings) as engine:
            engine.plans = []
            self.scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=16, prefill_tokens=64)
            self.tokens = tokens_of_jobs(
                self.scheduler,
                engine,
                lambda step: [attempt(preparer, name) for name in arrivals.get(step, [])],
                max([*arrivals, *(ends or {0: []})]),
                lambda step: (ends or {}).get(step, []),
            )
            self.plans = engine.plans


def alone(model: LlamaModel) -> dict[str, dict[int, list[int]]]:
    """What each job says when nobody else is there."""
    said: dict[str, dict[int, list[int]]] = {}
    for name in JOBS:
        said |= Run(model, {0: [name]}).tokens
    return said


def test_the_kind_is_found_in_the_file(model: LlamaModel) -> None:
    assert not model.can_trim
    with LlamaEngine(model, SETTINGS) as engine:
        assert not engine.limits.can_trim
        assert engine.limits.spare_slots == 0


def test_a_job_says_the_same_alone_and_among_jobs_that_come_are_set_aside_and_go(model: LlamaModel) -> None:
    expected = alone(model)

    company = Run(model, ARRIVALS)

    assert {name: company.tokens[name] for name in JOBS} == expected
    assert company.tokens["long+"] == expected["long"]
    assert company.tokens["short+"] == expected["short"]
    assert company.scheduler.counters.set_aside > 0


def test_nothing_is_shared_and_nothing_is_copied(model: LlamaModel) -> None:
    run = Run(model, {0: ["long", "same", "long+"], 30: ["same+"]})

    assert not any(isinstance(operation, Copy) for plan in run.plans for operation in plan.operations)
    assert run.scheduler.counters.copied_tokens == 0


def test_a_cancelled_jobs_slot_serves_the_next_one_from_an_empty_state(model: LlamaModel) -> None:
    expected = alone(model)
    names = ["long", "same", "three", "short"]

    run = Run(model, {0: names, 10: ["long+", "same+", "guided"]}, {4: ["long"], 8: ["same", "three"], 9: ["short"]})

    assert run.tokens["long+"] == expected["long"]
    assert run.tokens["same+"] == expected["same"]
    assert run.tokens["guided"] == expected["guided"]
    for name in names:
        for choice, tokens in run.tokens.get(name, {}).items():
            assert tokens == expected[name][choice][: len(tokens)]


@pytest.mark.parametrize("step", [2, 40, 150])
def test_a_job_that_was_set_aside_goes_on_with_its_state(model: LlamaModel, step: int) -> None:
    """In the midst of its prompt it reads again; once it decodes, its whole state is kept in host memory."""
    expected = {name: Run(model, {0: [name]}).tokens[name] for name in ("endless", "fire")}

    run = Run(model, {0: ["endless"], step: ["fire"]}, settings=SETTINGS.model_copy(update={"slots": 1}))

    assert run.tokens == expected
    assert run.scheduler.counters.set_aside == 1
    saved = any(isinstance(operation, Save) for plan in run.plans for operation in plan.operations)
    assert saved == (step > 2)


def test_in_a_pool_of_cells_all_jobs_complete(model: LlamaModel) -> None:
    pool = WorkerSettings(slots=4, ctx_per_slot=128, chunk_tokens=16, prefill_tokens=64, threads=1, memory="unified")
    jobs = [name for name in JOBS if name != "endless"]

    run = Run(model, {0: [*jobs, *(f"{name}+" for name in jobs)]}, settings=pool)

    for name in jobs:
        for tokens in [*run.tokens[name].values(), *run.tokens[f"{name}+"].values()]:
            assert len(tokens) == JOBS[name].get("max_tokens", 16)


def test_a_text_longer_than_a_window_goes_on(model: LlamaModel) -> None:
    run = Run(model, {0: ["endless"], 3: ["endless+", "short"]})

    assert len(run.tokens["endless"][0]) == JOBS["endless"]["max_tokens"] > WINDOW
    assert run.tokens["endless"] == run.tokens["endless+"]


def test_a_resumed_job_goes_on_after_what_was_delivered(model: LlamaModel) -> None:
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True)
    with LlamaEngine(model, SETTINGS) as engine:
        scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=16, prefill_tokens=64)
        whole = tokens_of_jobs(scheduler, engine, lambda step: [attempt(preparer, "short")] * (step == 0), 0)["short"][
            0
        ]
        rest = tokens_of_jobs(
            scheduler, engine, lambda step: [attempt(preparer, "short", {0: whole[:6]})] * (step == 0), 0
        )["short"][0]

    assert len(whole[:6] + rest) == len(whole)


def test_a_call_that_was_aborted_midway_costs_the_context_because_it_cannot_be_undone(model: LlamaModel) -> None:
    class Aborted(LlamaEngine):
        codes: list[int]

        def _decode(self, batch: Any) -> int:
            code = super()._decode(batch)
            return self.codes.pop() if self.codes else code

    expected = Run(model, {0: ["long"]}).tokens["long"]
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True)
    with Aborted(model, SETTINGS) as engine:
        engine.codes = [2]
        (result,) = engine.execute(Plan(calls=[[Piece(0, 0, [300] * 16, None), Piece(1, 0, [301] * 16, None)]]))
        scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=16, prefill_tokens=64)
        said = tokens_of_jobs(scheduler, engine, lambda step: [attempt(preparer, "long")] * (step == 0), 0)

    assert result.error is not None
    assert result.error.cells_lost
    assert said["long"] == expected


def test_the_probe_leaves_every_slot_empty(model: LlamaModel) -> None:
    expected = alone(model)["long"]
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True)
    with LlamaEngine(model, SETTINGS) as engine:
        report = probe(engine, model.n_vocab, 16)
        scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=16, prefill_tokens=64)
        said = tokens_of_jobs(scheduler, engine, lambda step: [attempt(preparer, "long")] * (step == 0), 0)

    assert said["long"] == expected
    assert report.reproducible
