"""What the client does, without doing it: each flow is a generator that yields steps and is sent their replies.

The synchronous and the asynchronous client perform the same steps (steps.py), so the protocol is written once and is
tested without a server. A step that fails is thrown into the flow. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar

from celery_llama.client.connection import CONNECTION_ERRORS
from celery_llama.client.steps import Flow, Publish, Subscribe, TellWorkers, Waiting
from celery_llama.ledger import queries
from celery_llama.ledger.cursor import EventCursor
from celery_llama.ledger.ledger import Replay, Submission
from celery_llama.ledger.replay import PAGE_ENTRIES
from celery_llama.protocol.embedding import EmbedJob, parse_embed_job
from celery_llama.protocol.errors import (
    IdempotencyConflict,
    InvalidJob,
    JobFailed,
    JobNotFound,
    JobTooLarge,
    OutputMismatch,
    StreamExpired,
)
from celery_llama.protocol.events import AnyEvent, Heartbeat, parse_event
from celery_llama.protocol.jobs import GenerateJob, encode_body, parse_generate_job
from celery_llama.protocol.kinds import Job, readable_body
from celery_llama.protocol.names import Names
from celery_llama.protocol.results import JobError, JobInfo, Parsed, Result
from celery_llama.protocol.workers import WorkerFacts
from celery_llama.settings import Settings

CancelOutcome = Literal["closed", "requested", "ended"]
#: The class that an output is made an instance of, None without one.
Model = TypeVar("Model", bound=BaseModel | None, default=None)


def prepare(
    job: GenerateJob | str | None, response_model: type[object] | None, fields: Mapping[str, object]
) -> GenerateJob:
    """Make the job of what `submit` was given; raises InvalidJob."""
    body = _body(job, fields)
    if (model := _pydantic(response_model)) is not None:
        if "response_format" in body:
            raise InvalidJob("give either response_model or response_format")
        schema = {"name": model.__name__[:64], "schema": model.model_json_schema()}
        body = {**body, "response_format": {"type": "json_schema", "json_schema": schema}}
    return parse_generate_job(body)


def _pydantic(response_model: type[object] | None) -> type[BaseModel] | None:
    if response_model is None or (isinstance(response_model, type) and issubclass(response_model, BaseModel)):
        return response_model
    raise InvalidJob("response_model is a class that is derived from pydantic's BaseModel")


def _body(job: GenerateJob | str | None, fields: Mapping[str, object]) -> dict[str, object]:
    if job is None:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    if isinstance(job, str):
        if "prompt" in fields:
            raise TypeError("give the prompt once")
        return {"prompt": job, **fields}
    if not isinstance(job, GenerateJob):
        raise InvalidJob(f"give a prompt, a GenerateJob or the fields of one, not a {type(job).__name__}")
    if fields:
        raise TypeError("give either a job or its fields")
    return job.body()


def prepare_embedding(given: EmbedJob | str | Sequence[str], fields: Mapping[str, object]) -> EmbedJob:
    """Make the job of what `embed` was given; raises InvalidJob."""
    if not isinstance(given, EmbedJob):
        return parse_embed_job({"input": given if isinstance(given, str) else list(given), **fields})
    if fields:
        raise TypeError("give either a job or its fields")
    return parse_embed_job(given.body())


def submit(settings: Settings, job: Job) -> Flow[str]:
    """Enter the job into the ledger, then send its message; returns its id."""
    body = job.body()
    size = len(encode_body(body).encode())
    if size > settings.max_job_bytes:
        raise JobTooLarge(size, settings.max_job_bytes)
    job_id = str(uuid4())
    submission: Submission = yield settings.ledger.submit(
        job_id, body, priority=job.priority, expires_seconds=job.expires, idempotency_key=job.idempotency_key
    )
    if submission.outcome == "conflict":
        raise IdempotencyConflict(f"the idempotency key belongs to job {submission.job_id}, which has another body")
    # Not only if it was created just now: the call may have been repeated because its first answer was lost.
    if submission.job_id == job_id:
        yield Publish(job_id, body, job.priority)
    return submission.job_id


def stream(names: Names, job_id: str, after: int, waiting: Waiting) -> Flow[None]:
    """Every event past `after`, once and in order, up to the terminal one; raises ValueError if `after` is negative."""
    if after < 0:
        raise ValueError("after is a sequence number: 0 or more")
    cursor = EventCursor(after)
    while not cursor.done:
        try:
            yield Subscribe(names.events(job_id))
            yield from _catch_up(names, job_id, cursor)
            waiting.reached()
            while not cursor.done:
                message = yield waiting.listen(cursor.seq)
                if waiting.silent(message):
                    yield Heartbeat(job_id=job_id, seq=cursor.seq)
                    continue
                event = _read(message, job_id)
                if event is not None and cursor.feed(event):
                    waiting.reached()
                    yield event
                elif event is None or cursor.gap or cursor.restarted:
                    break
        except CONNECTION_ERRORS as error:
            waiting.lost(error)


def _catch_up(names: Names, job_id: str, cursor: EventCursor) -> Flow[None]:
    """Give the reader what the stream has; raises StreamExpired if it has not what it should."""
    yield from _replay(names, job_id, cursor)
    if not cursor.done and (yield queries.has_ended(names, job_id)):
        yield from _replay(names, job_id, cursor)  # it may have ended since
        if not cursor.done:
            raise StreamExpired(job_id)


def _replay(names: Names, job_id: str, cursor: EventCursor) -> Flow[None]:
    start = cursor.position
    while True:
        page: list[queries.Entry] = yield queries.events(names, job_id, start, PAGE_ENTRIES)
        for _, event in page:
            if cursor.feed(event):
                yield event
        if len(page) < PAGE_ENTRIES:
            break
        start = f"({page[-1][0]}"
    if cursor.gap or cursor.restarted:
        raise StreamExpired(job_id)


def _read(message: bytes | None, job_id: str) -> AnyEvent | None:
    """Read a message; None sends the reader to the stream, which is what counts."""
    try:
        return parse_event(message, job_id) if message is not None else None
    except ValidationError:
        return None


def wait(names: Names, job_id: str, waiting: Waiting) -> Flow[Result]:
    """Wait until the job has ended; raises JobFailed, JobNotFound, ResultTimeout."""
    result: Result | None = yield queries.outcome(names, job_id)
    while result is None:
        try:
            yield Subscribe(names.ended(job_id))
            result = yield queries.outcome(names, job_id)
            waiting.reached()
            if result is None:
                yield waiting.listen()  # whatever was heard, or nothing: the ledger is what counts
                result = yield queries.outcome(names, job_id)
                waiting.reached()
        except CONNECTION_ERRORS as error:
            waiting.lost(error)
    if result.status == "failed":
        reason = result.error or JobError(code="internal_error", message="no reason given")
        raise JobFailed(job_id, reason.code, reason.message, result)
    return result


def parsed(result: Result, response_model: type[Parsed] | None) -> Result[Parsed]:
    """Add the response model's instance; raises OutputMismatch."""
    model = _pydantic(response_model)
    if model is not None and result.status == "completed":
        try:
            result._parsed = model.model_validate_json(result.text)
        except ValidationError as error:
            raise OutputMismatch(result.id, model.__name__, result) from error
    return result


def status(names: Names, job_id: str) -> Flow[JobInfo]:
    """The job's state; raises JobNotFound."""
    info: JobInfo = yield queries.job_info(names, job_id)
    # In this order, so that a job that has ended has its last event.
    last: int | None = yield queries.last_seq(names, job_id)
    return info.model_copy(update={"last_seq": last})


def cancel(settings: Settings, job_id: str) -> Flow[CancelOutcome]:
    """End the job if nobody runs it, else make its worker end it; raises JobNotFound."""
    answer: CancelOutcome | Literal["unknown"] = yield settings.ledger.cancel(job_id)
    if answer == "unknown":
        raise JobNotFound(job_id)
    if answer == "requested":
        yield TellWorkers(job_id)
    return answer


def retry(settings: Settings, job_id: str) -> Flow[None]:
    """Run a failed job again under its own id; raises JobNotFound, InvalidJob if it has not failed."""
    replay: Replay = yield settings.ledger.retry(job_id)
    if replay.outcome == "unknown":
        raise JobNotFound(job_id)
    if replay.outcome == "not_failed":
        raise InvalidJob(f"job {job_id} has not failed, so there is nothing to retry")
    yield Publish(job_id, readable_body(replay.body), replay.priority)


def workers(names: Names) -> Flow[dict[str, WorkerFacts]]:
    """The workers that are alive, by owner, and what they say of themselves."""
    owners: list[str] = yield queries.worker_owners(names)
    if not owners:
        return {}
    alive: dict[str, WorkerFacts] = yield queries.living(names, owners)
    return alive


def has_worker(names: Names) -> Flow[bool]:
    """Whether anybody takes jobs."""
    return bool((yield from workers(names)))


def failed(names: Names, limit: int) -> Flow[list[JobInfo]]:
    """The jobs that failed, the latest first."""
    infos = []
    for job_id in (yield queries.failed_jobs(names, limit)):
        try:
            infos.append((yield from status(names, job_id)))
        except JobNotFound:  # its data has expired
            continue
    return infos
