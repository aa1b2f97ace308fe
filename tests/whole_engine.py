"""Preparer, scheduler, engine and transcript together, steps driven by hand: jobs in, results and events out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from celery_llama.protocol.delivered import DeliveredChoice
from celery_llama.protocol.events import AnyEvent, Token, parse_event
from celery_llama.protocol.jobs import parse_generate_job
from celery_llama.protocol.results import Result, TokenLogprob
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.outputs import Ended, Output
from celery_llama_worker.engine.preparing.preparer import GeneratePreparer
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.settings import WorkerSettings

Jobs = Mapping[str, Mapping[str, Any]]


@dataclass
class Answer:
    """What a job's readers get."""

    result: Result
    events: list[AnyEvent]

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.result.text

    @property
    def tokens(self) -> list[int]:
        """The first choice's tokens, as they were streamed."""
        return [token for event in self.token_events() for token in event.tokens]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """The first choice's log-probabilities."""
        assert self.result.choices[0].logprobs is not None
        return self.result.choices[0].logprobs

    def token_events(self, choice: int = 0) -> list[Token]:
        """The events that brought a choice's text."""
        return [event for event in self.events if isinstance(event, Token) and event.choice == choice]

    def streamed(self, choice: int = 0) -> str:
        """A choice's text, put together from its events."""
        return "".join(event.text for event in self.token_events(choice))


@dataclass
class WholeEngine:
    """One engine for many tests; between them, only beginnings of prompts are kept."""

    model: LlamaModel
    engine: LlamaEngine
    scheduler: GenerateScheduler
    preparer: GeneratePreparer
    _transcripts: dict[str, Transcript] = field(default_factory=dict)
    _events: dict[str, list[str]] = field(default_factory=dict)
    _done: dict[str, Answer] = field(default_factory=dict)

    def run(self, jobs: Jobs) -> dict[str, Answer]:
        """Run these jobs side by side to their ends."""
        for job_id, body in jobs.items():
            self.add(job_id, body)
        while not self.scheduler.idle:
            self.step()
        return {job_id: self._done.pop(job_id) for job_id in jobs}

    def one(self, **body: Any) -> Answer:
        """Run one job."""
        return self.run({"one": body})["one"]

    def add(self, job_id: str, body: Mapping[str, Any], delivered: Mapping[int, list[int]] | None = None) -> None:
        """Take in a job as it goes over the wire; raises InvalidJob."""
        job = parse_generate_job(dict(body))
        said = {choice: DeliveredChoice(tokens=tokens) for choice, tokens in (delivered or {}).items()}
        prepared = self.preparer.prepare(job_id, 1, job, said, None)
        transcript = Transcript(job_id, 1, attempts=1, worker="w", model=self.model.name, piece=self.preparer.piece)
        transcript.describe(
            choices=job.n,
            prompt_tokens=prepared.prompt_tokens,
            seed=prepared.seed,
            reproducible=prepared.reproducible,
            logprobs=job.logprobs,
        )
        self._transcripts[job_id], self._events[job_id] = transcript, []
        self._note(self.scheduler.add(prepared.attempt))

    def end(self, job_id: str) -> None:
        """Cancel a job."""
        self._note(self.scheduler.end(job_id, "cancelled"))

    def step(self) -> None:
        """One step, as the engine thread makes it."""
        plan = self.scheduler.plan(0.0)
        for call, result in zip(plan.calls, self.engine.execute(plan), strict=True):
            self._note(self.scheduler.commit(call, result))
        self.scheduler.tidy()

    def _note(self, outputs: list[Output]) -> None:
        """One emission for each output, as if Redis were never slow."""
        for output in outputs:
            transcript, events = self._transcripts[output.job_id], self._events[output.job_id]
            events += [event for _, event in transcript.write([output]).events]
            if isinstance(output, Ended):
                _, event, result = transcript.end(output)
                parsed = [parse_event(event) for event in [*events, event]]
                self._done[output.job_id] = Answer(Result.model_validate_json(result.model_dump_json()), parsed)


@contextmanager
def whole_engine(model: LlamaModel, *, reproducible: bool = True, **options: Any) -> Iterator[WholeEngine]:
    """An engine with these settings; on one thread, since several wait for each other on a busy machine."""
    settings = WorkerSettings(**{"threads": 1, **options})
    with LlamaEngine(model, settings) as engine:
        scheduler = GenerateScheduler(
            engine.limits, model, chunk_tokens=settings.chunk_tokens, prefill_tokens=settings.prefill_tokens
        )
        yield WholeEngine(model, engine, scheduler, GeneratePreparer(model, settings, reproducible=reproducible))
