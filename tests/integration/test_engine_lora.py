"""LoRA adapters: SETTINGS by each job, never mixed with a neighbour's; scheduler and engine, steps driven by hand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob, parse_generate_job
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.llama.sampling import make_sampler
from celery_llama_worker.engine.plan import Adapters, Piece, Plan, Trim
from celery_llama_worker.engine.preparing.preparer import GeneratePreparer
from celery_llama_worker.engine.probe import probe
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.engine.scheduling.sequence import Attempt
from celery_llama_worker.errors import StartupError
from celery_llama_worker.model_files import load_model
from celery_llama_worker.settings import WorkerSettings
from tests.stepping import tokens_of_jobs
from tests.tiny_model import tiny_model, write_tiny_adapter

TEXT = "the thin king and the other one ate an apple in the inn. " * 2
JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "red": {"lora": [{"name": "red"}]},
    "pale": {"lora": [{"name": "red", "scale": 0.5}]},
    "blue": {"lora": [{"name": "blue"}]},
    "both": {"lora": [{"name": "blue"}, {"name": "red"}]},
    "none": {"lora": [{"name": "red", "scale": 0.0}]},
    "three": {"lora": [{"name": "red"}], "n": 3, "temperature": 0.9},
    "guided": {"lora": [{"name": "blue"}], "guidance": {"negative_prompt": TEXT[::-1], "scale": 1.7}},
    "urgent": {"lora": [{"name": "blue"}], "priority": 0, "n": 3},
}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_tiny_adapter(folder / f"{name}.gguf", seed=seed) for seed, name in enumerate(("red", "blue"))}


@pytest.fixture(scope="module")
def model(adapters: dict[str, Path]) -> Iterator[LlamaModel]:
    with load_model(WorkerSettings(model=str(tiny_model()), lora=adapters)) as model:
        yield model


class Counting(LlamaEngine):
    """Counts how often the adapters change."""

    switches = 0

    def _use(self, adapters: Adapters) -> None:
        self.switches += adapters != self._adapters
        super()._use(adapters)


SETTINGS = WorkerSettings(slots=4, ctx_per_slot=256, chunk_tokens=16, prefill_tokens=64, threads=1)


def run(model: LlamaModel, arrivals: Mapping[int, list[str]]) -> dict[str, dict[int, list[int]]]:
    """Let jobs arrive at these steps; the tokens of every choice."""
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True, reproducible_with_lora=True)
    with LlamaEngine(model, SETTINGS) as engine:
        scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=16, prefill_tokens=64)

        def attempts(step: int) -> Iterator[Any]:
            for name in arrivals.get(step, []):
                job = {"prompt": TEXT, "temperature": 0.0, "max_tokens": 12, "seed": 7, **JOBS[name.rstrip("+")]}
                yield preparer.prepare(name, 1, parse(job), {}, None).attempt

        return tokens_of_jobs(scheduler, engine, attempts, max(arrivals))


def take_all(arriving: list[Attempt], _step: int) -> list[Attempt]:
    """All of them, once."""
    taken, arriving[:] = arriving[:], []
    return taken


def parse(body: dict[str, Any]) -> GenerateJob:
    return parse_generate_job({**body, "ignore_eos": True})


def test_a_job_says_the_same_alone_and_among_jobs_with_other_adapters(model: LlamaModel) -> None:
    alone: dict[str, Any] = {}
    for name in JOBS:
        alone |= run(model, {0: [name]})

    arrivals = {0: ["plain", "red", "pale"], 2: ["blue", "red+", "none"], 5: ["both", "three"], 9: ["urgent", "guided"]}
    company = run(model, {**arrivals, 20: ["plain+", "blue+", "red++"]})

    assert {name: company[name] for name in JOBS} == alone
    assert company["red+"] == company["red++"] == alone["red"]
    assert (company["plain+"], company["blue+"]) == (alone["plain"], alone["blue"])


def test_every_set_of_adapters_says_something_else_and_a_scale_of_zero_is_no_adapter(model: LlamaModel) -> None:
    said = run(model, {0: ["plain", "red", "pale", "blue", "both", "none"]})

    assert said["none"] == said["plain"]
    assert len({str(said[name]) for name in ("plain", "red", "pale", "blue", "both")}) == 5


def test_a_prefix_is_found_by_jobs_with_the_same_adapters_only(model: LlamaModel) -> None:
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True)
    with LlamaEngine(model, SETTINGS) as engine:
        scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=16, prefill_tokens=64)
        read = []
        for number, name in enumerate(("plain", "red", "red", "plain", "blue")):
            job = parse({"prompt": TEXT, "max_tokens": 1, **JOBS[name]})
            arriving = [preparer.prepare(f"job-{number}", 1, job, {}, None).attempt]
            before = scheduler.counters.read_tokens
            tokens_of_jobs(scheduler, engine, partial(take_all, arriving), 0)
            read.append(scheduler.counters.read_tokens - before)

    whole = read[0]
    assert read[1] == read[4] == whole
    assert read[2] == read[3] < 16


def test_a_step_changes_the_adapters_as_rarely_as_can_be(model: LlamaModel) -> None:
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True)
    with Counting(model, SETTINGS) as engine:
        scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=16, prefill_tokens=64)
        for name in ("plain", "red"):
            scheduler.add(
                preparer.prepare(name, 1, parse({"prompt": "the", "max_tokens": 20, **JOBS[name]}), {}, None).attempt
            )
        steps = 0
        while not scheduler.idle:
            plan = scheduler.plan(0.0)
            for call, result in zip(plan.calls, engine.execute(plan), strict=True):
                scheduler.commit(call, result)
            steps += 1
        scheduler.tidy()

    assert engine.switches <= steps


def test_after_a_new_context_the_adapters_are_set_again(model: LlamaModel) -> None:
    with LlamaEngine(model, SETTINGS) as engine:
        first = likeliest(engine)
        assert engine._failed(-3, ()).cells_lost
        assert likeliest(engine) == first


def likeliest(engine: LlamaEngine) -> int:
    """The likeliest token under an adapter."""
    sampler = make_sampler(GenerateJob(prompt="x", temperature=0), engine._model, seed=1)
    piece = Piece(0, 0, list(range(300, 316)), sampler, adapters=(("red", 1.0),))
    (result,) = engine.execute(Plan([Trim(0, 0)], [[piece]]))
    sampler.close()
    return result.sampled[0].token


def test_the_probe_tells_of_adapters_too(model: LlamaModel) -> None:
    with LlamaEngine(model, SETTINGS) as engine:
        assert probe(engine, model.n_vocab, 16, (("blue", 1.0), ("red", 1.0))).reproducible


def test_an_adapter_that_the_worker_does_not_have_is_refused(model: LlamaModel) -> None:
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True)

    with pytest.raises(InvalidJob, match=r"^lora: this worker has no green, it has red, blue$"):
        preparer.prepare("j", 1, parse({"prompt": "x", "lora": [{"name": "green"}]}), {}, None)


def test_results_of_jobs_with_adapters_vouch_only_for_what_was_probed_with_adapters(model: LlamaModel) -> None:
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True, reproducible_with_lora=False)
    fields = {"prompt": "x", "lora": [{"name": "red"}]}

    assert preparer.prepare("j", 1, parse({"prompt": "x"}), {}, None).reproducible
    assert not preparer.prepare("j", 1, parse(fields), {}, None).reproducible
    assert preparer.prepare("j", 1, parse({**fields, "reproducible": "require"}), {}, None).attempt.exclusive


def test_a_file_that_is_no_adapter_of_this_model_stops_the_start_with_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(write_tiny_adapter(tmp_path / "whole.gguf").read_bytes()[:3000])
    text = tmp_path / "text.gguf"
    text.write_text("no GGUF")
    shutil.copy(tiny_model(), tmp_path / "model.gguf")
    other = write_tiny_adapter(tmp_path / "other.gguf", architecture="qwen2")

    for path, why in (
        (tmp_path / "none.gguf", "cannot read the adapter"),
        (text, "is not a GGUF file"),
        (half, "is it a LoRA adapter of this very model"),
        (tmp_path / "model.gguf", "is it a LoRA adapter of this very model"),
        (other, "model arch and LoRA arch mismatch"),
    ):
        with pytest.raises(StartupError, match=why) as caught:
            LlamaModel(tiny_model(), lora={"one": path})
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
