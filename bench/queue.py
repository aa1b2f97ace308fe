"""The queue: the same work as jobs through Redis, pool, engine, events and results, with a real worker process."""

from __future__ import annotations

from collections.abc import Sequence

from bench.stage import Worker
from bench.work import Work
from celery_llama import JobHandle
from celery_llama.protocol.results import Result

#: A job of a worker that is gone waits for another one.
_PATIENCE_SECONDS = 600.0


def submit(worker: Worker, work: Work, priority: int = 5) -> list[JobHandle]:
    """Put the work into the queue."""
    return [
        worker.client.submit(prompt=prompt, max_tokens=work.max_tokens, temperature=0.0, priority=priority)
        for prompt in work.prompts
    ]


def run(worker: Worker, work: Work) -> int:
    """Submit the work, wait until every result is there; returns how many tokens came."""
    return generated(results(submit(worker, work)))


def results(handles: Sequence[JobHandle]) -> list[Result]:
    """What became of the jobs."""
    return [handle.result(timeout=_PATIENCE_SECONDS) for handle in handles]


def generated(results: Sequence[Result]) -> int:
    """How many tokens all have."""
    return sum(result.usage.completion_tokens for result in results)
