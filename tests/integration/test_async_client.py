"""The asynchronous client does what the synchronous one does."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from pydantic import BaseModel

from celery_llama.client.async_client import AsyncClient, AsyncJobHandle
from celery_llama.client.client import Client, JobHandle
from celery_llama.protocol.errors import InvalidJob, JobFailed, JobNotFound, ResultTimeout, ServerUnreachable
from celery_llama.protocol.events import AnyEvent, Heartbeat
from celery_llama.settings import Settings
from tests.integration.hand import Hand, free_port

Run = Callable[[Callable[[AsyncClient], Coroutine[Any, Any, Any]]], Any]


class City(BaseModel):
    name: str


@pytest.fixture
def run(settings: Settings) -> Run:
    """Runs a coroutine function with a client."""

    def run(body: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            async with AsyncClient(settings=settings) as client:
                return await body(client)

        return asyncio.run(main())

    return run


async def read(job: AsyncJobHandle, after: int = 0) -> list[AnyEvent]:
    return [event async for event in job.stream(after, timeout=60)]


@pytest.mark.parametrize(("plain", "awaited"), [(Client, AsyncClient), (JobHandle, AsyncJobHandle)])
def test_both_clients_offer_the_same(plain: type, awaited: type) -> None:
    def offers(kind: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(method).parameters) for name, method in methods if name[0] != "_"}

    assert offers(plain) == offers(awaited)


def test_a_job_is_submitted_streamed_and_awaited(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x", response_model=City)
        reader = asyncio.create_task(read(job))
        waiter = asyncio.create_task(job.result(timeout=60))
        hand.claim(job.id)
        hand.say(job.id, '{"name":', '"Rome"}')
        await asyncio.to_thread(hand.finish, job.id, '{"name":"Rome"}', seq=3)

        assert [event.seq for event in await reader] == [1, 2, 3]
        assert (await waiter).parsed == City(name="Rome")
        assert [event.seq for event in await read(job, after=2)] == [3]
        assert (await job.status()).status == "completed"

    run(body)


def test_many_readers_share_a_client(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x")
        hand.claim(job.id)
        readers = []
        for seq in range(1, 21):
            readers.append(asyncio.create_task(read(job, after=seq // 2)))
            await asyncio.to_thread(hand.say, job.id, f"{seq} ", first_seq=seq)
        await asyncio.to_thread(hand.finish, job.id, seq=21)

        whole = await read(job)
        assert [event.seq for event in whole] == list(range(1, 22))
        assert await asyncio.gather(*readers) == [whole[seq // 2 :] for seq in range(1, 21)]

    run(body)


def test_a_reader_does_not_notice_that_its_connection_was_cut(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x")
        hand.claim(job.id)
        hand.say(job.id, "a")
        stream = job.stream(timeout=60)
        assert (await anext(stream)).seq == 1
        hand.connection.client_kill_filter(_type="pubsub")
        hand.say(job.id, "b", first_seq=2)
        hand.finish(job.id, "ab", seq=3)

        assert [event.seq async for event in stream] == [2, 3]

    run(body)


def test_a_wait_for_an_event_may_be_given_up_and_taken_up_again(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x")
        hand.claim(job.id)
        stream = job.stream(timeout=60)
        for seq in (1, 2, 3):
            for _ in range(seq):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.001 * seq)
            waiting = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(hand.say, job.id, f"{seq}", first_seq=seq)
            assert (await asyncio.wait_for(anext(stream), 60)).seq == seq
        hand.finish(job.id, "123", seq=4)

        assert [event.seq async for event in stream] == [4]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(body)


def test_a_wait_that_is_given_up_at_any_moment_loses_no_event(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x")
        hand.claim(job.id)
        writer = asyncio.create_task(asyncio.to_thread(write, job.id))
        stream, seen = job.stream(timeout=60), list[int]()
        for patience in itertools.cycle(range(40)):
            waiting = asyncio.ensure_future(anext(stream))
            for _ in range(patience):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                seen.append((await waiting).seq)
            except asyncio.CancelledError:
                continue
            except StopAsyncIteration:
                break
        await writer
        assert seen == list(range(1, 202))

    def write(job_id: str) -> None:
        for seq in range(1, 201):
            hand.say(job_id, "x", first_seq=seq)
        hand.finish(job_id, "x" * 200, seq=201)

    run(body)


def test_a_reader_is_told_that_nothing_has_come(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x")
        stream = job.stream(timeout=60, heartbeat=0.01)
        assert [await anext(stream) for _ in range(2)] == [Heartbeat(job_id=job.id, seq=0)] * 2
        hand.claim(job.id)
        hand.finish(job.id, seq=1)

        assert [event.type async for event in stream if not isinstance(event, Heartbeat)] == ["finished"]

    run(body)


def test_a_reader_that_leaves_early_may_come_back(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x")
        hand.claim(job.id)
        hand.say(job.id, "a", "b")
        stream = job.stream()
        first = await anext(stream)
        await stream.aclose()
        hand.finish(job.id, "ab", seq=3)

        assert [event.seq for event in await read(job, after=first.seq)] == [2, 3]

    run(body)


def test_a_failed_job_raises_is_listed_and_runs_again(run: Run, hand: Hand) -> None:
    async def body(client: AsyncClient) -> None:
        job = await client.submit(prompt="x")
        hand.claim(job.id)
        hand.finish(job.id, seq=1, status="failed")
        with pytest.raises(JobFailed):
            await job.result()
        assert [info.id for info in await client.failed()] == [job.id]
        await job.retry()
        assert await client.cancel_queued({"other": "metadata"}) == 0
        assert await client.cancel_queued() == 1
        assert await job.cancel() == "ended"
        assert (await job.result()).status == "cancelled"

    run(body)


def test_what_cannot_be_done_is_said_in_the_same_words(run: Run) -> None:
    async def body(client: AsyncClient) -> None:
        with pytest.raises(InvalidJob):
            await client.submit(prompt="")
        with pytest.raises(InvalidJob):
            client.job("no id")
        with pytest.raises(JobNotFound):
            await client.job("nobody-s").status()
        with pytest.raises(JobNotFound):
            await read(client.job("nobody-s"))
        with pytest.raises(ResultTimeout):
            await (await client.submit("x")).result(timeout=0)
        assert not await client.has_worker()
        await client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            await client.submit("x")

    run(body)


def test_a_server_that_cannot_be_reached_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_llama.client.connection.RETRIES", 0)

    async def body() -> None:
        async with AsyncClient(f"redis://:secret@127.0.0.1:{free_port()}/0") as client:
            with pytest.raises(ServerUnreachable, match="redis://127") as caught:
                await client.submit(prompt="x")
            assert "secret" not in str(caught.value)
            with pytest.raises(ServerUnreachable):
                await read(client.job("j"))

    asyncio.run(body())
