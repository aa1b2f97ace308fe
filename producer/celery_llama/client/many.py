"""What the client does with many jobs at once. Pure, as flows.py; any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import redis

from celery_llama.client import flows
from celery_llama.client.steps import Flow, Step, T, Together
from celery_llama.ledger import queries
from celery_llama.ledger.operation import Operation
from celery_llama.ledger.queries import Query
from celery_llama.protocol.errors import CeleryLlamaError
from celery_llama.protocol.results import JobInfo
from celery_llama.settings import Settings

#: Jobs that are looked at together.
PAGE_JOBS = 500
#: What may be wrong with one job and need not be with the next.
JobTrouble = CeleryLlamaError | redis.ResponseError


def lockstep(many: Iterable[Flow[T]]) -> Flow[list[T | JobTrouble]]:
    """Run flows side by side: what they ask of Redis at a time goes there in one round trip.

    Returns what each has returned, or the error with which it ended.
    """
    running = dict(enumerate(many))
    ends: dict[int, T | JobTrouble] = {}
    replies: dict[int, Any] = dict.fromkeys(running)
    while replies:
        asked: dict[int, Step] = {}
        for index, reply in replies.items():
            flow = running[index]
            try:
                asked[index] = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
            except StopIteration as stop:
                ends[index] = stop.value
            except (CeleryLlamaError, redis.ResponseError) as error:
                ends[index] = error
        calls = {index: step for index, step in asked.items() if isinstance(step, Operation | Query)}
        answers: list[Any] = (yield Together(list(calls.values()))) if calls else []
        replies = dict(zip(calls, answers, strict=True))
        for index in asked.keys() - calls.keys():
            replies[index] = yield asked[index]
    return [ends[index] for index in range(len(running))]


def cancel_queued(settings: Settings, metadata: Mapping[str, str]) -> Flow[int]:
    """Cancel the jobs that wait and have this metadata, page by page; returns how many there were.

    A job that a worker takes up meanwhile is cancelled there.
    """
    cancelled, cursor = 0, 0
    while True:
        page: queries.OpenJobs = yield queries.open_jobs(settings.names, cursor, PAGE_JOBS)
        infos = yield from lockstep(_info(settings, job_id) for job_id in page.job_ids)
        waiting = [
            info.id
            for info in infos
            if isinstance(info, JobInfo) and info.status == "queued" and metadata.items() <= info.metadata.items()
        ]
        outcomes = yield from lockstep(flows.cancel(settings, job_id) for job_id in waiting)
        for outcome in outcomes:
            if isinstance(outcome, redis.ResponseError):  # the entry could be read: this is no single job's trouble
                raise outcome
        cancelled += sum(outcome in ("closed", "requested") for outcome in outcomes)
        cursor = page.cursor
        if cursor == 0:
            return cancelled


def _info(settings: Settings, job_id: str) -> Flow[JobInfo]:
    info: JobInfo = yield queries.job_info(settings.names, job_id)
    return info
