"""The rights that docs/protocol.md gives suffice and are no more than it says; Celery reads its message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from celery_llama.celery_app import make_app
from celery_llama.client.client import Client
from celery_llama.protocol.names import GENERATE_TASK
from celery_llama.settings import Settings
from tests.integration.hand import Hand

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"```\w+ {kind}\n(.*?)```", PROTOCOL, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def users(connection: redis.Redis, settings: Settings) -> Iterator[None]:
    """The users of docs/protocol.md, in the test's namespace."""
    lines = block("acl").replace("celery-llama", settings.namespace).splitlines()
    for line in lines:
        connection.execute_command(*line.split())  # type: ignore[no-untyped-call]
    yield
    connection.acl_deluser("producer", "reader")


def as_user(settings: Settings, user: str) -> Client:
    url = settings.redis_url.replace("redis://", f"redis://{user}:secret@")
    return Client(url, settings=settings)


@pytest.mark.usefixtures("users")
def test_a_producer_may_do_all_that_the_client_offers(settings: Settings, hand: Hand) -> None:
    with as_user(settings, "producer") as client:
        assert not client.has_worker()
        queued = client.submit(prompt="x", idempotency_key="k", expires=60.0, metadata={"a": "b"})
        assert queued.cancel() == "closed"
        assert [event.type for event in queued.stream()] == ["finished"]
        assert queued.result().status == "cancelled"

        running = client.submit(prompt="x")
        hand.claim(running.id)
        assert running.status().status == "running"
        assert running.cancel() == "requested"
        hand.finish(running.id, seq=1, status="failed")
        assert [info.id for info in client.failed()] == [running.id]
        running.retry()

        hand.do(settings.ledger.expire(client.submit(prompt="x", expires=60.0).id))
        assert len(client.failed()) == 1


@pytest.mark.usefixtures("users")
def test_a_reader_may_read_and_nothing_else(settings: Settings, client: Client) -> None:
    job_id = client.submit(prompt="x").id
    with as_user(settings, "reader") as reader:
        job = reader.job(job_id)
        assert job.status().status == "queued"
        for attempt in (job.cancel, job.retry, lambda: reader.submit(prompt="x")):
            with pytest.raises(NoPermissionError):
                attempt()
        assert reader.failed() == []
        client.job(job_id).cancel()
        assert [event.type for event in job.stream()] == ["finished"]
        assert job.result().status == "cancelled"


@pytest.mark.usefixtures("users")
def test_no_user_may_look_beyond_the_namespace(settings: Settings) -> None:
    for user in ("producer", "reader"):
        with (
            as_user(settings.model_copy(update={"namespace": "elsewhere"}), user) as client,
            pytest.raises(NoPermissionError),
        ):
            client.job("j").status()


def test_the_message_without_a_celery_client_is_one_that_celery_reads(
    settings: Settings, connection: redis.Redis
) -> None:
    connection.lpush(f"{settings.namespace}\x06\x165", json.dumps(json.loads(block("message"))))
    app = make_app(settings)

    with app.connection() as broker:
        message = broker.default_channel.basic_get(settings.namespace, no_ack=True)
        arguments, named, _embed = message.decode()
    app.close()

    assert (arguments, named) == ([], {"job": {"prompt": "Hello", "max_tokens": 16}})
    assert (message.headers["task"], message.headers["id"]) == (GENERATE_TASK, "job-1")
