"""Greedy output on SmolLM2 does not change with who else is there; scheduler and engine, steps driven by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.outputs import Ended, Text
from celery_llama_worker.engine.preparing.preparer import GeneratePreparer
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.settings import WorkerSettings

# One thread: with two, a busy machine makes ggml's threads wait for each other for most of the time.
SETTINGS = WorkerSettings(slots=16, ctx_per_slot=512, chunk_tokens=32, prefill_tokens=128, threads=1)
SYSTEM = "You are a careful assistant who answers in short and plain sentences and never makes anything up. " * 4

Texts = dict[str, dict[int, list[int]]]


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


JOBS: dict[str, dict[str, Any]] = {
    "story": {"prompt": "Once upon a time there was a fox who", "max_tokens": 40},
    "sky": {"messages": chat("Why is the sky blue?"), "max_tokens": 32},
    "sea": {"messages": chat("Why is the sea salt?"), "max_tokens": 32},
    "long": {"prompt": "The quick brown fox jumps over the lazy dog. " * 30, "max_tokens": 24},
    "three": {"prompt": "The colours of the rainbow are", "max_tokens": 16, "n": 3},
    "guided": {
        "prompt": "The weather today is",
        "guidance": {"negative_prompt": "The terrible weather is", "scale": 1.6},
        "max_tokens": 20,
    },
    "list": {"prompt": "Three fruits:\n1.", "stop": ["\n4."], "max_tokens": 40},
    "schema": {
        "messages": chat("A person, as JSON."),
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "p", "schema": {"type": "object", "properties": {"age": {"type": "integer"}}}},
        },
        "max_tokens": 24,
    },
    **{f"patient-{n}": {"prompt": f"Count: {n},", "max_tokens": 50, "priority": 9} for n in range(6)},
    "urgent": {"prompt": "Fire! The first thing to do is", "max_tokens": 24, "priority": 0},
}


def decode(model: LlamaModel, arrivals: Mapping[int, list[str]], cancels: Mapping[int, list[str]]) -> Texts:
    """Let jobs arrive and be cancelled at these steps; the tokens of every choice."""
    preparer = GeneratePreparer(model, SETTINGS, reproducible=True)
    texts: Texts = {}
    with LlamaEngine(model, SETTINGS) as engine:
        scheduler = GenerateScheduler(engine.limits, model, chunk_tokens=32, prefill_tokens=128)
        step = 0
        while step <= max([*arrivals, *cancels]) or not scheduler.idle:
            outputs = []
            for name in arrivals.get(step, []):
                fields = {"temperature": 0.0, **JOBS[name.rstrip("+")]}
                job = GenerateJob.model_validate(fields)
                outputs += scheduler.add(preparer.prepare(name, 1, job, {}, None).attempt)
            for name in cancels.get(step, []):
                outputs += scheduler.end(name, "cancelled")
            plan = scheduler.plan(0.0)
            for call, result in zip(plan.calls, engine.execute(plan), strict=True):
                outputs += scheduler.commit(call, result)
            for output in outputs:
                if isinstance(output, Text):
                    tokens = texts.setdefault(output.job_id, {}).setdefault(output.choice, [])
                    tokens += [sampled.token for sampled in output.tokens]
                elif isinstance(output, Ended):
                    assert output.reason in {"done", "cancelled"}
            step += 1
        if len(arrivals) > 1:
            assert scheduler.counters.largest_batch == SETTINGS.slots
            assert scheduler.counters.set_aside > 0
            assert scheduler.counters.copied_tokens > 0
    return texts


@pytest.mark.timeout(600)
def test_every_job_says_the_same_alone_and_among_jobs_that_come_and_go(model: LlamaModel) -> None:
    alone: Texts = {}
    for name in JOBS:
        alone |= decode(model, {0: [name]}, {})

    # "+" are second copies: some are cancelled half-way, some find their prompt in a neighbour's cells.
    company = decode(
        model,
        {
            0: ["story", "sky", "long", "sky+", *(f"patient-{n}" for n in range(6))],
            3: ["three", "sea", "story+"],
            7: ["guided", "schema"],
            9: ["urgent", "list"],
            20: ["urgent+", "long+", "sea+"],
        },
        {5: ["sky+"], 12: ["story+"], 30: ["long+"]},
    )

    assert {name: company[name] for name in alone} == alone
    for name in ("urgent+", "sea+"):
        assert company[name] == alone[name.rstrip("+")]
    for name in ("sky+", "story+", "long+"):
        whole = alone[name.rstrip("+")][0]
        assert company.get(name, {0: []})[0] == whole[: len(company.get(name, {0: []})[0])]
