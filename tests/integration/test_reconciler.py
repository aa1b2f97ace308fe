"""The reconciler on a real server: which jobs are published again, and which are left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from celery_llama.client.client import Client
from celery_llama.protocol.names import Names
from celery_llama_worker.bookkeeping.reconciler import Reconciler
from celery_llama_worker.settings import WorkerSettings
from tests.integration.hand import Hand


class Published(list[tuple[str, Any, int]]):
    """What was published."""

    def __call__(self, job_id: str, body: Any, priority: int) -> None:
        self.append((job_id, body, priority))


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def worker_settings(names: Names, server_url: str) -> WorkerSettings:
    return WorkerSettings(namespace=names.namespace, redis_url=server_url)


@pytest.fixture
def reconciler(connection: redis.Redis, worker_settings: WorkerSettings, published: Published) -> Reconciler:
    return Reconciler(connection, worker_settings, "me", published, [worker_settings.namespace])


def enter(hand: Hand, job_id: str = "j") -> None:
    """A job in the ledger, without a message."""
    hand.do(hand.ledger.submit(job_id, {"prompt": "x"}, priority=3, expires_seconds=None, idempotency_key=None))


def let_time_pass(connection: redis.Redis, names: Names, job_id: str = "j", seconds: float = 1_000) -> None:
    connection.zincrby(names.open, -seconds, job_id)


def test_a_job_that_has_lost_its_message_is_published_again_once(
    reconciler: Reconciler, published: Published, hand: Hand, connection: redis.Redis, names: Names
) -> None:
    enter(hand)
    let_time_pass(connection, names)

    reconciler.tick()
    assert published == [], "it may have been on its way from one place to another"
    reconciler.tick()
    assert published == [("j", {"prompt": "x"}, 3)]
    reconciler.tick()
    reconciler.tick()
    assert len(published) == 1


@pytest.mark.parametrize("place", ["queue", "unacked"])
def test_a_job_that_has_a_message_is_left_alone(
    reconciler: Reconciler, published: Published, hand: Hand, connection: redis.Redis, names: Names, place: str
) -> None:
    enter(hand)
    enter(hand, "other")
    message: Any = {"headers": {"id": "j"}}
    if place == "queue":
        connection.lpush(names.namespace, json.dumps(message))
    else:
        connection.hset(names.unacked, "tag", json.dumps([message, "", names.namespace]))
    let_time_pass(connection, names)
    let_time_pass(connection, names, "other")

    reconciler.tick()
    reconciler.tick()

    assert [job_id for job_id, _, _ in published] == ["other"]


def test_a_job_is_found_behind_any_number_that_have_their_messages(
    reconciler: Reconciler,
    published: Published,
    hand: Hand,
    connection: redis.Redis,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may wait for long where more urgent jobs come."""
    monkeypatch.setattr("celery_llama_worker.bookkeeping.reconciler._PER_PASS", 1)
    for job_id in ("first", "second"):
        enter(hand, job_id)
        let_time_pass(connection, names, job_id, 2_000)
        connection.lpush(names.namespace, json.dumps({"headers": {"id": job_id}}))
    enter(hand)
    let_time_pass(connection, names)

    reconciler.tick()
    reconciler.tick()

    assert [job_id for job_id, _, _ in published] == ["j"]


def test_a_job_that_somebody_vouches_for_is_left_alone(
    reconciler: Reconciler, published: Published, hand: Hand
) -> None:
    enter(hand)
    hand.claim("j", "other")

    reconciler.tick()
    reconciler.tick()

    assert published == []


def test_a_job_that_its_worker_lives_without_is_published_again(
    reconciler: Reconciler, published: Published, hand: Hand, connection: redis.Redis, names: Names
) -> None:
    """A worker may have lost a job and be well: that it lives says nothing about the job."""
    enter(hand)
    hand.claim("j", "other")
    let_time_pass(connection, names)

    reconciler.tick()
    reconciler.tick()

    assert connection.exists(names.lease("other"))
    assert len(published) == 1


def test_a_body_that_makes_no_sense_is_the_claims_problem(
    reconciler: Reconciler, published: Published, hand: Hand, connection: redis.Redis, names: Names
) -> None:
    enter(hand)
    connection.hset(names.job("j"), "body", "nonsense")
    let_time_pass(connection, names)

    reconciler.tick()
    reconciler.tick()

    assert published == [("j", {}, 3)]


def test_a_job_that_was_cancelled_without_a_message_is_published_for_celery_to_hear_of_it(
    reconciler: Reconciler, published: Published, hand: Hand, connection: redis.Redis, names: Names
) -> None:
    enter(hand)
    hand.do(hand.ledger.cancel("j"))
    let_time_pass(connection, names)

    reconciler.tick()
    reconciler.tick()

    assert published == [("j", {}, 3)]


def test_a_job_whose_entry_has_expired_is_forgotten(
    reconciler: Reconciler, published: Published, connection: redis.Redis, names: Names
) -> None:
    connection.zadd(names.open, {"j": 1})

    reconciler.tick()
    reconciler.tick()

    assert published == []
    assert connection.zcard(names.open) == 0


def test_one_worker_reconciles_as_long_as_it_lives(
    reconciler: Reconciler,
    published: Published,
    hand: Hand,
    connection: redis.Redis,
    names: Names,
    worker_settings: WorkerSettings,
) -> None:
    other = Reconciler(connection, worker_settings, "other", published, [names.namespace])
    enter(hand)
    let_time_pass(connection, names)
    for _ in range(3):
        other.tick()
        other.tick()
        connection.zadd(names.open, {"j": 1})
    assert len(published) == 3

    reconciler.tick()
    reconciler.tick()
    assert len(published) == 3

    connection.delete(names.reconciler)  # as when its time is over
    reconciler.tick()
    reconciler.tick()
    assert len(published) == 4


def test_a_job_that_did_not_begin_in_time_is_ended(
    reconciler: Reconciler, client: Client, connection: redis.Redis, names: Names
) -> None:
    job = client.submit(prompt="x", expires=1_000.0)
    connection.zadd(names.expiring, {job.id: 1})

    reconciler.tick()

    info = job.status()
    assert info.status == "failed"
    assert info.error is not None
    assert info.error.code == "expired"
