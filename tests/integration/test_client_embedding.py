"""Embedding jobs on a real server, with the worker played by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from celery_llama.cli.commands import main
from celery_llama.client.async_client import AsyncClient
from celery_llama.client.client import Client
from celery_llama.protocol.errors import IdempotencyConflict, InvalidJob
from celery_llama.protocol.events import encode_event
from celery_llama.protocol.names import Names
from celery_llama.protocol.results import Choice, JobError, Result
from celery_llama.settings import Settings
from tests.integration.hand import Hand

VECTORS = [[0.6, 0.8], [1.0, 0.0]]


def messages(connection: redis.Redis, names: Names) -> list[dict[str, Any]]:
    """What waits in the queue, the latest first."""
    return [json.loads(raw) for raw in connection.lrange(f"{names.namespace}\x06\x165", 0, -1)]


def finish(hand: Hand, job_id: str) -> None:
    """End the job as a worker does."""
    event = encode_event(1, 1, "finished", {"status": "completed", "finish_reason": ["stop"]})
    choices = [Choice(finish_reason="stop")]
    result = Result(id=job_id, status="completed", choices=choices, embeddings=VECTORS, attempts=1)
    hand.do(hand.ledger.finish(job_id, 1, 1, event, result))


def test_an_embedding_job_is_a_message_of_its_own_task(client: Client, connection: redis.Redis, names: Names) -> None:
    job = client.embed(["a secret", "b"])

    (message,) = messages(connection, names)
    headers = message["headers"]
    assert (headers["id"], headers["task"]) == (job.id, "celery_llama.embed")
    assert headers["kwargsrepr"] == "embedding, 2 texts"


def test_the_result_has_the_vectors(client: Client, hand: Hand) -> None:
    job = client.embed("a", dimensions=2)
    hand.claim(job.id)
    finish(hand, job.id)

    result = job.result(timeout=10)
    assert (result.embeddings, result.text, result.finish_reason) == (VECTORS, "", "stop")
    assert [event.type for event in job.stream()] == ["finished"]


def test_the_asynchronous_client_embeds_too(settings: Settings, hand: Hand) -> None:
    async def embed() -> Result:
        async with AsyncClient(settings=settings) as client:
            job = await client.embed(["a", "b"])
            hand.claim(job.id)
            finish(hand, job.id)
            return await job.result(timeout=10)

    assert asyncio.run(embed()).embeddings == VECTORS


def test_a_failed_embedding_job_is_retried_as_one(
    client: Client, hand: Hand, connection: redis.Redis, names: Names
) -> None:
    job = client.embed("a")
    hand.claim(job.id)
    error = JobError(code="engine_error", message="it broke")
    event = encode_event(1, 1, "failed", {"error": error.model_dump()})
    hand.do(hand.ledger.finish(job.id, 1, 1, event, Result(id=job.id, status="failed", error=error)))

    job.retry()

    assert [message["headers"]["task"] for message in messages(connection, names)] == ["celery_llama.embed"] * 2


def test_a_cancelled_embedding_job_ends_at_once_without_vectors(client: Client) -> None:
    job = client.embed("a")

    assert job.cancel() == "closed"
    result = job.result(timeout=10)
    assert (result.status, result.embeddings, result.finish_reason) == ("cancelled", None, "cancelled")


def test_an_idempotency_key_belongs_to_one_set_of_texts(client: Client) -> None:
    first = client.embed("a", idempotency_key="k")

    assert client.embed(["a"], idempotency_key="k").id == first.id
    with pytest.raises(IdempotencyConflict):
        client.embed("b", idempotency_key="k")


def test_a_wrong_job_is_refused_before_anything_is_stored(
    client: Client, connection: redis.Redis, names: Names
) -> None:
    with pytest.raises(InvalidJob):
        client.embed([])

    assert not messages(connection, names)


def test_the_command_prints_a_vector_a_line(client: Client, settings: Settings, hand: Hand) -> None:
    job = client.embed(["a", "b"])
    hand.claim(job.id)
    finish(hand, job.id)

    arguments = ["--redis-url", settings.redis_url, "--namespace", settings.namespace, "result", job.id]
    printed = CliRunner().invoke(main, arguments)

    assert (printed.exit_code, printed.output) == (0, "[0.6, 0.8]\n[1.0, 0.0]\n")
