"""With quantised weights on a CPU, a job's greedy output is a function of the job: token for token, alone or not.

On a real model, and without the scheduler: what is tested is what it relies on. Prompts are read in whole chunks, calls
have pieces of one length, and a prefix is copied only up to a whole chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from celery_llama.protocol.jobs import GenerateJob, Message
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.llama.sampling import LlamaSampler
from celery_llama_worker.engine.plan import Call, Copy, Piece, Plan, Trim
from celery_llama_worker.engine.preparing.prompt import PromptBuilder
from celery_llama_worker.settings import WorkerSettings
from tests.decoding import operate

JOBS, SLOTS, CHUNK, CELLS = 20, 8, 64, 256
TOPICS = (
    "rivers bread glass trains honey maps wolves salt clocks rain kites iron bees tides paper moss ink snow bells oil"
)
SYSTEM = (
    "You are a helpful assistant who answers in few plain sentences, gives one example, and never repeats a question. "
    "You prefer short words, you give numbers where you know them, and you say so when you do not know something."
)


@dataclass(eq=False)
class Running:
    """One job's way through the engine."""

    prompt: list[int]
    sampler: LlamaSampler
    wanted: int
    arrival: int
    slot: int = -1
    read: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.output) == self.wanted


def make_jobs(model: LlamaModel) -> list[Running]:
    """Jobs of different lengths that arrive one after another."""
    builder = PromptBuilder(model, CELLS)
    jobs = []
    for number, topic in enumerate(TOPICS.split()[:JOBS]):
        question = f"What are {topic} good for? " + "Think of daily life. " * (number % 5)
        job = GenerateJob(
            messages=[Message(role="system", content=SYSTEM), Message(role="user", content=question)],
            temperature=0,
            ignore_eos=number % 2 == 1,
        )
        prepared = builder.prepare(job)
        sampler = builder.sampler(job, prepared, seed=1)
        jobs.append(Running(list(prepared.tokens), sampler, wanted=8 + number % 5, arrival=2 * number))
    return jobs


def chunk_of(job: Running) -> Piece:
    """The next whole chunk of the prompt, or its last part."""
    end = min(job.read + CHUNK, len(job.prompt))
    last = end == len(job.prompt)
    return Piece(job.slot, job.read, job.prompt[job.read : end], job.sampler if last else None)


def calls_of(active: list[Running]) -> list[Call]:
    """A step: all decode rows in one call, then prompt chunks, those of one length together."""
    decoding = [job for job in active if job.output]
    calls: list[Call] = []
    if decoding:
        rows = [(job.slot, len(job.prompt) + len(job.output) - 1, job.output[-1:], job.sampler) for job in decoding]
        calls.append([Piece(*row) for row in rows])
    by_length: dict[int, list[Piece]] = {}
    for job in active:
        if not job.output:
            by_length.setdefault(len(chunk_of(job).tokens), []).append(chunk_of(job))
    return calls + list(by_length.values())


def drive(engine: LlamaEngine, jobs: list[Running], *, together: int, share: bool) -> list[list[int]]:
    """Run the jobs, so many at once at the most, as they arrive; their outputs."""
    active: list[Running] = []
    waiting = list(jobs)
    step = 0
    while waiting or active:
        free = [slot for slot in range(together) if slot not in {job.slot for job in active}]
        while free and waiting and (waiting[0].arrival <= step or not active):
            job = waiting.pop(0)
            job.slot = free.pop(0)
            source = next((other for other in active if share and other.read >= CHUNK), None)
            if source is not None and source.prompt[:CHUNK] == job.prompt[:CHUNK]:
                operate(engine, Copy(source.slot, job.slot, CHUNK))
                job.read = CHUNK
            else:
                operate(engine, Trim(job.slot, 0))
            active.append(job)
        execute(engine, active)
        active = [job for job in active if not job.done]
        step += 1
    return [job.output for job in jobs]


def execute(engine: LlamaEngine, active: list[Running]) -> None:
    """One step."""
    calls = calls_of(active)
    for call, result in zip(calls, engine.execute(Plan(calls=calls)), strict=True):
        assert result.error is None
        assert not result.faults
        for piece in call:
            job = next(job for job in active if job.slot == piece.slot)
            job.read = max(job.read, min(piece.start + len(piece.tokens), len(job.prompt)))
            if piece.slot in result.sampled:
                job.output.append(result.sampled[piece.slot].token)


@pytest.mark.timeout(300)
def test_twenty_jobs_say_the_same_alone_and_among_others(model: LlamaModel) -> None:
    # one compute thread: several wait for each other, and on a busy machine for everybody else
    settings = WorkerSettings(
        slots=SLOTS, ctx_per_slot=CELLS, chunk_tokens=CHUNK, prefill_tokens=SLOTS * CHUNK, threads=1
    )
    with LlamaEngine(model, settings) as engine:
        alone = drive(engine, make_jobs(model), together=1, share=False)
        among = drive(engine, make_jobs(model), together=SLOTS, share=False)
        shared = drive(engine, make_jobs(model), together=SLOTS, share=True)

    assert among == alone
    assert shared == alone
