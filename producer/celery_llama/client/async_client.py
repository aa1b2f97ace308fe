"""AsyncClient and AsyncJobHandle: client.py, awaited. For one event loop; what to do is decided in flows.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

import redis
import redis.asyncio
import redis.asyncio.client

from celery_llama.client import flows, many
from celery_llama.client.async_stream import AsyncEventStream
from celery_llama.client.connection import connect_async, reachable
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
from celery_llama.ledger.pipeline import call_together_async
from celery_llama.ledger.queries import Query, ask_async
from celery_llama.ledger.scripts import execute_async
from celery_llama.protocol.embedding import EmbedJob
from celery_llama.protocol.errors import CeleryLlamaError
from celery_llama.protocol.events import AnyEvent, Event, Heartbeat
from celery_llama.protocol.fields import EmbedFields, GenerateFields
from celery_llama.protocol.jobs import GenerateJob
from celery_llama.protocol.results import JobInfo, Parsed, Result
from celery_llama.settings import Settings, resolve_settings

T = TypeVar("T")


class AsyncClient:
    """Submits jobs and finds them again."""

    def __init__(
        self, url: str | None = None, *, namespace: str | None = None, settings: Settings | None = None
    ) -> None:
        self.settings = resolve_settings(url, settings, namespace)
        self._connection = connect_async(self.settings)
        self._messenger = Messenger(self.settings)
        self._closed = False

    async def submit(
        self,
        job: GenerateJob | str | None = None,
        /,
        *,
        response_model: type[Model] | None = None,
        **fields: Unpack[GenerateFields],
    ) -> AsyncJobHandle[Model]:
        """Queue a job, given whole, or by its prompt and other fields; returns at once.

        `response_model` holds the output to a pydantic model's schema, and the result's `.parsed` is an instance of it.
        Raises InvalidJob, JobTooLarge, IdempotencyConflict, ServerUnreachable.
        """
        job_id = await self._run(flows.submit(self.settings, flows.prepare(job, response_model, fields)))
        return AsyncJobHandle(self, job_id, response_model)

    async def embed(
        self, texts: str | Sequence[str] | EmbedJob, /, **fields: Unpack[EmbedFields]
    ) -> AsyncJobHandle[None]:
        """Queue an embedding job; the result's `.embeddings` has a vector for each text, in their order.

        Raises InvalidJob, JobTooLarge, IdempotencyConflict, ServerUnreachable.
        """
        job = flows.prepare_embedding(texts, fields)
        return AsyncJobHandle(self, await self._run(flows.submit(self.settings, job)))

    def job(self, job_id: str, *, response_model: type[Model] | None = None) -> AsyncJobHandle[Model]:
        """Return a handle on a job, whoever submitted it, without asking the server. Raises InvalidJob for no id."""
        self.settings.names.job(job_id)
        return AsyncJobHandle(self, job_id, response_model)

    async def failed(self, limit: int = 100) -> list[JobInfo]:
        """List the jobs that failed and may be run again, the latest first. Raises ServerUnreachable."""
        return await self._run(flows.failed(self.settings.names, limit))

    async def cancel_queued(self, metadata: Mapping[str, str] | None = None) -> int:
        """Cancel the jobs that no worker has taken up yet, all or those with this metadata; returns how many.

        Jobs that were sent without our client are not known before a worker takes them up. Raises ServerUnreachable.
        """
        return await self._run(many.cancel_queued(self.settings, metadata or {}))

    async def has_worker(self) -> bool:
        """Whether a worker of the namespace is alive, or was within the last lease. Raises ServerUnreachable."""
        return await self._run(flows.has_worker(self.settings.names))

    async def close(self) -> None:
        """Close all connections, for good; streams that are being read end with an error."""
        self._closed = True
        await self._connection.aclose()
        await asyncio.to_thread(self._messenger.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[T]) -> T:
        returned: list[T] = []
        async for _ in self._drive(flow, returned):
            pass
        return returned[0]

    async def _drive(self, flow: Flow[T], returned: list[T]) -> AsyncGenerator[Any, None]:
        """Perform a flow's steps, yield its events, append what it returns to `returned`."""
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
                        returned.append(stop.value)
                        return
                    if isinstance(step, Event):
                        yield step
                        resume = partial(flow.send, None)
                        continue
                    try:
                        resume = partial(flow.send, await line.perform(step))
                    except (redis.RedisError, CeleryLlamaError) as error:
                        resume = partial(flow.throw, error)
            finally:
                await line.close()


class AsyncJobHandle(Generic[Parsed]):
    """One job, whoever submitted it."""

    def __init__(self, client: AsyncClient, job_id: str, response_model: type[Parsed] | None = None) -> None:
        self.id = job_id
        self._client, self._response_model = client, response_model
        self._names = client.settings.names

    @overload
    def stream(
        self, after: int = 0, timeout: float | None = None, *, heartbeat: None = None
    ) -> AsyncEventStream[AnyEvent]: ...

    @overload
    def stream(
        self, after: int = 0, timeout: float | None = None, *, heartbeat: float
    ) -> AsyncEventStream[AnyEvent | Heartbeat]: ...

    def stream(
        self, after: int = 0, timeout: float | None = None, *, heartbeat: float | None = None
    ) -> AsyncEventStream[Any]:
        """Yield the job's events past sequence number `after`, live or from the store, up to the terminal one.

        `timeout` is in seconds, for the whole stream. After `heartbeat` seconds without an event comes a Heartbeat.
        Raises JobNotFound, StreamExpired, ResultTimeout, ServerUnreachable, ValueError if `after` is negative.
        """
        flow = flows.stream(self._names, self.id, after, Waiting(self.id, timeout, heartbeat))
        return AsyncEventStream(self._client._drive(flow, []))

    async def result(self, timeout: float | None = None) -> Result[Parsed]:
        """Wait for the job's end, at most `timeout` seconds; a cancelled or incomplete job's result is returned too.

        Raises JobFailed, JobNotFound, ResultTimeout, OutputMismatch, ServerUnreachable.
        """
        result = await self._client._run(flows.wait(self._names, self.id, Waiting(self.id, timeout)))
        return flows.parsed(result, self._response_model)

    async def status(self) -> JobInfo:
        """Return the job's state. Raises JobNotFound, ServerUnreachable."""
        return await self._client._run(flows.status(self._names, self.id))

    async def cancel(self) -> CancelOutcome:
        """End the job: `closed` at once, `requested` of the worker that runs it, or it had `ended` before.

        Raises JobNotFound, ServerUnreachable.
        """
        return await self._client._run(flows.cancel(self._client.settings, self.id))

    async def retry(self) -> None:
        """Run a failed job again, under the same id.

        Raises JobNotFound, InvalidJob if it has not failed, ServerUnreachable.
        """
        await self._client._run(flows.retry(self._client.settings, self.id))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


class _Line:
    """Performs the steps of one flow; owns its subscription."""

    def __init__(self, connection: redis.asyncio.Redis, messenger: Messenger) -> None:
        self._connection, self._messenger = connection, messenger
        self._subscription: redis.asyncio.client.PubSub | None = None

    async def perform(self, step: Step) -> Any:
        match step:
            case Operation():
                return await execute_async(self._connection, step)
            case Query():
                return await ask_async(self._connection, step)
            case Together():
                return await call_together_async(self._connection, step.calls)
            case Subscribe():
                return await self._subscribe(step.channel)
            case Listen():
                return await self._listen(step.seconds)
            case Publish() | TellWorkers():
                return await asyncio.to_thread(self._messenger.perform, step)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.aclose()  # type: ignore[no-untyped-call]
            self._subscription = None

    async def _subscribe(self, channel: str) -> None:
        await self.close()
        self._subscription = self._connection.pubsub()
        await self._subscription.subscribe(channel)
        check_confirmation(await self._subscription.get_message(timeout=CONFIRMATION_SECONDS))

    async def _listen(self, seconds: float) -> bytes | None:
        assert self._subscription is not None
        return message_data(await self._subscription.get_message(timeout=seconds))
