"""Admission on a real ledger: what a message leads to, by who has the job and how well that worker is."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from celery_llama.ledger.ledger import TaskState
from celery_llama_worker.bookkeeping.admission import Admission, Identity
from celery_llama_worker.bookkeeping.outcome import DROPPED, HANDED_BACK, Outcome
from celery_llama_worker.broker.delivery import Delivery
from celery_llama_worker.engine.attempt import JobAttempt
from celery_llama_worker.settings import WorkerSettings
from tests.integration.hand import Hand
from tests.waiting import wait_until


class Around:
    """Runner, publisher, preparer and pool, as far as admission knows them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.claimed: list[str] = []
        self.closed: list[str] = []

    def ended(self, _delivery: Delivery, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def accepted(self, delivery: Delivery) -> None:
        self.claimed.append(delivery.job_id)

    def open(self, *_: Any) -> None: ...

    def close(self, _job_id: str, _attempt: int, reason: str, _error: Any = None) -> None:
        self.closed.append(reason)

    def send(self, *_: Any) -> None: ...

    def piece(self, _token: int) -> bytes:
        return b""

    def prepare(self, *_: Any) -> Any:
        return SimpleNamespace(prompt_tokens=1, seed=1, reproducible=True, attempt=None, choices=1, logprobs=False)


@pytest.fixture
def around() -> Around:
    return Around()


@pytest.fixture
def admission(hand: Hand, around: Around) -> Iterator[Admission[JobAttempt]]:
    settings = WorkerSettings(namespace=hand.ledger.names.namespace)
    fake = cast(Any, around)
    state = TaskState(task_key(hand), "STARTED", 100)
    admission = Admission(hand.connection, settings, fake, fake, fake, lambda _: state, Identity("me", "model"))
    yield admission
    admission.stop()


def task_key(hand: Hand) -> str:
    """Where Celery is to find the job's state."""
    return f"{hand.ledger.names.namespace}:task"


def message() -> Delivery:
    """A message of the job `j`."""
    arguments = ("task", "j", {"kwargs": {"job": {"prompt": "x"}}}, b"", "", "")
    return Delivery(1, "j", cast(Any, None), arguments, cast(Any, None), cast(Any, None), cast(Any, None))


def test_a_job_that_a_live_worker_has_is_left_to_it(
    admission: Admission[JobAttempt], around: Around, hand: Hand
) -> None:
    hand.claim("j", "other")

    admission.admit(message(), around)

    assert wait_until(lambda: around.outcomes, "the delivery ends") == [DROPPED]


def test_celery_is_told_that_a_job_has_started_with_its_claim(
    admission: Admission[JobAttempt], around: Around, hand: Hand, connection: redis.Redis
) -> None:
    admission.admit(message(), around)

    wait_until(lambda: around.claimed, "the job is claimed")
    assert connection.get(task_key(hand)) == b"STARTED"
    assert 0 < connection.ttl(task_key(hand)) <= 100


def test_celery_is_not_told_that_somebody_elses_job_has_started(
    admission: Admission[JobAttempt], around: Around, hand: Hand, connection: redis.Redis
) -> None:
    hand.claim("j", "other")

    admission.admit(message(), around)

    wait_until(lambda: around.outcomes, "the delivery ends")
    assert not connection.exists(task_key(hand))


def test_a_job_whose_worker_is_late_is_kept_until_that_worker_is_dead(
    admission: Admission[JobAttempt], around: Around, hand: Hand, connection: redis.Redis
) -> None:
    """kombu goes by the workers' clocks, the lease by the server's: the message may come first, and be the only one."""
    hand.claim("j", "other")
    connection.pexpire(hand.ledger.names.lease("other"), 200)

    admission.admit(message(), around)

    assert wait_until(lambda: around.claimed, "the job is claimed") == ["j"]
    assert not connection.exists(hand.ledger.names.lease("other"))
    assert not around.outcomes


def test_a_job_whose_worker_was_late_and_lives_is_left_to_it(
    admission: Admission[JobAttempt], around: Around, hand: Hand, connection: redis.Redis
) -> None:
    hand.claim("j", "other")
    lease = hand.ledger.names.lease("other")
    connection.pexpire(lease, 2_000)

    admission.admit(message(), around)
    wait_until(lambda: admission._postponed._waiting, "the message waits")
    connection.expire(lease, 1_000)
    admission._submit(admission._postponed.flush)

    assert wait_until(lambda: around.outcomes, "the delivery ends") == [DROPPED]


def test_a_message_that_waits_for_a_late_worker_goes_back_when_this_one_stops(
    admission: Admission[JobAttempt], around: Around, hand: Hand, connection: redis.Redis
) -> None:
    hand.claim("j", "other")
    connection.pexpire(hand.ledger.names.lease("other"), 10_000)
    admission.admit(message(), around)
    wait_until(lambda: admission._postponed._waiting, "the message waits")

    admission.hand_back()

    assert wait_until(lambda: around.outcomes, "the delivery ends") == [HANDED_BACK]
    assert not admission._postponed._waiting


def test_a_task_that_was_revoked_before_it_came_is_claimed_and_cancelled(
    admission: Admission[JobAttempt], around: Around, hand: Hand
) -> None:
    """Celery would drop the message and tell nobody: a job that never ends, published again for ever."""
    delivery = message()
    delivery.revoked = True

    admission.admit(delivery, around)

    assert wait_until(lambda: around.closed, "the job ends") == ["cancelled"]
    assert hand.connection.hget(hand.ledger.names.job("j"), "status") == b"running", "the publisher ends it"


def test_a_ledger_entry_that_cannot_be_read_is_tried_again_later_and_not_at_once(
    admission: Admission[JobAttempt], around: Around, hand: Hand, connection: redis.Redis
) -> None:
    connection.hset(hand.ledger.names.job("j"), mapping={"status": "completed", "result": "nonsense", "created": "1"})
    connection.zadd(hand.ledger.names.open, {"j": 1})

    admission.admit(message(), around)

    assert wait_until(lambda: around.outcomes, "the delivery ends") == [DROPPED]


@pytest.mark.parametrize("priority", [True, "5", None, [5]])
def test_a_priority_that_is_no_number_holds_nobody_up(
    admission: Admission[JobAttempt], around: Around, priority: Any
) -> None:
    """redis-py refuses to send it, and the admit thread would try again for ever."""
    delivery = message()
    delivery.arguments[2]["delivery_info"] = {"priority": priority}

    admission.admit(delivery, around)

    assert wait_until(lambda: around.claimed, "the job is claimed") == ["j"]


def test_what_celery_has_been_told_needs_no_worker_any_more(
    admission: Admission[JobAttempt], hand: Hand, connection: redis.Redis
) -> None:
    hand.claim("j")
    hand.finish("j", seq=1)

    admission.acknowledge("no/job")
    admission.acknowledge("j")

    wait_until(lambda: not connection.exists(hand.ledger.names.open), "the job is not open any more")


def test_what_celery_was_told_last_is_noted_although_the_worker_stops(
    admission: Admission[JobAttempt], hand: Hand, connection: redis.Redis
) -> None:
    hand.claim("j")
    hand.finish("j", seq=1)
    admission.hand_back()

    admission.acknowledge("j")

    wait_until(lambda: not connection.exists(hand.ledger.names.open), "the job is not open any more")
