"""Client and JobHandle: submit jobs, follow them, end them. Any thread; AsyncClient is the same, awaited.

What to do is decided in flows.py; here it is done, with blocking calls.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

import redis
import redis.client

from celery_llama.client import flows, many
from celery_llama.client.connection import connect, reachable
from celery_llama.client.flows import CancelOutcome, Model
from celery_llama.client.messenger import Messenger
from celery_llama.client.steps import (
    CONFIRMATION_SECONDS,
    Flow,
    Listen,
    Publish,
    Step,
    Subscribe,
    TellWorkers,
    Together,
    Waiting,
    check_confirmation,
    message_data,
)
from celery_llama.ledger.operation import Operation
from celery_llama.ledger.pipeline import call_together
from celery_llama.ledger.queries import Query, ask
from celery_llama.ledger.scripts import execute
from celery_llama.protocol.embedding import EmbedJob
from celery_llama.protocol.errors import CeleryLlamaError
from celery_llama.protocol.events import AnyEvent, Event, Heartbeat
from celery_llama.protocol.fields import EmbedFields, GenerateFields
from celery_llama.protocol.jobs import GenerateJob
from celery_llama.protocol.results import JobInfo, Parsed, Result
from celery_llama.settings import Settings, resolve_settings

T = TypeVar("T")


class Client:
    """Submits jobs and finds them again."""

    def __init__(
        self, url: str | None = None, *, namespace: str | None = None, settings: Settings | None = None
    ) -> None:
        self.settings = resolve_settings(url, settings, namespace)
        self._connection = connect(self.settings)
        self._messenger = Messenger(self.settings)
        self._closed = False

    def submit(
        self,
        job: GenerateJob | str | None = None,
        /,
        *,
        response_model: type[Model] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> JobHandle[Model]:
        """Queue a job, given whole, or by its prompt and other fields; returns at once.

        `response_model` holds the output to a pydantic model's schema, and the result's `.parsed` is an instance of it.
        Raises InvalidJob, JobTooLarge, IdempotencyConflict, ServerUnreachable.
        """
        job_id = self._run(flows.submit(self.settings, flows.prepare(job, response_model, fields)))
        return JobHandle(self, job_id, response_model)

    def embed(self, texts: str | Sequence[str] | EmbedJob, /, **fields: Unpack[EmbedFields]) -> JobHandle[None]:
        """Queue an embedding job; the result's `.embeddings` has a vector for each text, in their order.

        Raises InvalidJob, JobTooLarge, IdempotencyConflict, ServerUnreachable.
        """
        job = flows.prepare_embedding(texts, fields)
        return JobHandle(self, self._run(flows.submit(self.settings, job)))

    def job(self, job_id: str, *, response_model: type[Model] | None = None) -> JobHandle[Model]:
        """Return a handle on a job, whoever submitted it, without asking the server. Raises InvalidJob for no id."""
        self.settings.names.job(job_id)
        return JobHandle(self, job_id, response_model)

    def failed(self, limit: int = 100) -> list[JobInfo]:
        """List the jobs that failed and may be run again, the latest first. Raises ServerUnreachable."""
        return self._run(flows.failed(self.settings.names, limit))

    def cancel_queued(self, metadata: Mapping[str, str] | None = None) -> int:
        """Cancel the jobs that no worker has taken up yet, all or those with this metadata; returns how many.

        Jobs that were sent without our client are not known before a worker takes them up. Raises ServerUnreachable.
        """
        return self._run(many.cancel_queued(self.settings, metadata or {}))

    def has_worker(self) -> bool:
        """Whether a worker of the namespace is alive, or was within the last lease. Raises ServerUnreachable."""
        return self._run(flows.has_worker(self.settings.names))

    def close(self) -> None:
        """Close all connections, for good; streams that are being read end with an error."""
        self._closed = True
        self._connection.close()
        self._messenger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        drive = self._drive(flow)
        while True:
            try:
                next(drive)
            except StopIteration as stop:
                result: T = stop.value
                return result

    def _drive(self, flow: Flow[T]) -> Generator[AnyEvent | Heartbeat, None, T]:
        """Perform a flow's steps, yield its events, return what it returns."""
        if self._closed:
            raise RuntimeError("the client is closed")
        line = _Line(self._connection, self._messenger)
        resume = partial(flow.send, None)
        with reachable(self.settings):
            try:
                while True:
                    try:
                        step = resume()
                    except StopIteration as stop:
                        result: T = stop.value
                        return result
                    if isinstance(step, Event):
                        yield step
                        resume = partial(flow.send, None)
                        continue
                    try:
                        resume = partial(flow.send, line.perform(step))
                    except (redis.RedisError, CeleryLlamaError) as error:
                        resume = partial(flow.throw, error)
            finally:
                line.close()


class JobHandle(Generic[Parsed]):
    """One job, whoever submitted it."""

    def __init__(self, client: Client, job_id: str, response_model: type[Parsed] | None = None) -> None:
        self.id = job_id
        self._client, self._response_model = client, response_model
        self._names = client.settings.names

    @overload
    def stream(self, after: int = 0, timeout: float | None = None, *, heartbeat: None = None) -> Iterator[AnyEvent]: ...

    @overload
    def stream(
        self, after: int = 0, timeout: float | None = None, *, heartbeat: float
    ) -> Iterator[AnyEvent | Heartbeat]: ...

    def stream(
        self, after: int = 0, timeout: float | None = None, *, heartbeat: float | None = None
    ) -> Iterator[AnyEvent | Heartbeat]:
        """Yield the job's events past sequence number `after`, live or from the store, up to the terminal one.

        `timeout` is in seconds, for the whole stream. After `heartbeat` seconds without an event comes a Heartbeat.
        Raises JobNotFound, StreamExpired, ResultTimeout, ServerUnreachable, ValueError if `after` is negative.
        """
        return self._client._drive(flows.stream(self._names, self.id, after, Waiting(self.id, timeout, heartbeat)))

    def result(self, timeout: float | None = None) -> Result[Parsed]:
        """Wait for the job's end, at most `timeout` seconds; a cancelled or incomplete job's result is returned too.

        Raises JobFailed, JobNotFound, ResultTimeout, OutputMismatch, ServerUnreachable.
        """
        result = self._client._run(flows.wait(self._names, self.id, Waiting(self.id, timeout)))
        return flows.parsed(result, self._response_model)

    def status(self) -> JobInfo:
        """Return the job's state. Raises JobNotFound, ServerUnreachable."""
        return self._client._run(flows.status(self._names, self.id))

    def cancel(self) -> CancelOutcome:
        """End the job: `closed` at once, `requested` of the worker that runs it, or it had `ended` before.

        Raises JobNotFound, ServerUnreachable.
        """
        return self._client._run(flows.cancel(self._client.settings, self.id))

    def retry(self) -> None:
        """Run a failed job again, under the same id.

        Raises JobNotFound, InvalidJob if it has not failed, ServerUnreachable.
        """
        self._client._run(flows.retry(self._client.settings, self.id))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class _Line:
    """Performs the steps of one flow; owns its subscription."""

    def __init__(self, connection: redis.Redis, messenger: Messenger) -> None:
        self._connection, self._messenger = connection, messenger
        self._subscription: redis.client.PubSub | None = None

    def perform(self, step: Step) -> Any:
        match step:
            case Operation():
                return execute(self._connection, step)
            case Query():
                return ask(self._connection, step)
            case Together():
                return call_together(self._connection, step.calls)
            case Subscribe():
                return self._subscribe(step.channel)
            case Listen():
                return self._listen(step.seconds)
            case Publish() | TellWorkers():
                return self._messenger.perform(step)

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _subscribe(self, channel: str) -> None:
        self.close()
        self._subscription = self._connection.pubsub()  # type: ignore[no-untyped-call]
        self._subscription.subscribe(channel)
        check_confirmation(self._subscription.get_message(timeout=CONFIRMATION_SECONDS))

    def _listen(self, seconds: float) -> bytes | None:
        assert self._subscription is not None
        return message_data(self._subscription.get_message(timeout=seconds))
