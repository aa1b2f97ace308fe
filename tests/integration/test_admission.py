"""Admission on a real ledger: what a message leads to, by who has the job and how well that worker is."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from celery_llama.ledger.ledger import Emission, TaskState
from celery_llama.protocol.events import encode_event
from celery_llama.protocol.jobs import encode_body
from celery_llama.protocol.results import JobError
from celery_llama.protocol.workers import WorkerFacts
from celery_llama_worker.bookkeeping.admission import Admission, Identity
from celery_llama_worker.bookkeeping.outcome import DROPPED, HANDED_BACK, Outcome
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.broker.delivery import Delivery
from celery_llama_worker.engine.attempt import JobAttempt
from celery_llama_worker.settings import WorkerSettings
from tests.integration.hand import Hand
from tests.waiting import wait_until

FACTS = WorkerFacts(model="model", fingerprint="f", adapters={"blue": "b"})


class Around:
    """Runner, publisher, preparer and pool, as far as admission knows them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.claimed: list[str] = []
        self.closed: list[str] = []
        self.errors: list[JobError] = []
        self.transcripts: list[Transcript] = []
        self.sent: list[Any] = []

    def ended(self, _delivery: Delivery, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def accepted(self, delivery: Delivery) -> None:
        self.claimed.append(delivery.job_id)

    def open(self, transcript: Transcript, _on_end: Any) -> None:
        self.transcripts.append(transcript)

    def close(self, _job_id: str, _attempt: int, reason: str, error: JobError | None = None) -> None:
        self.closed.append(reason)
        self.errors += [] if error is None else [error]

    def send(self, command: Any) -> None:
        self.sent.append(command)

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
    admission = Admission(hand.connection, settings, fake, fake, fake, lambda _: state, Identity("me", FACTS))
    yield admission
    admission.stop()


def task_key(hand: Hand) -> str:
    """Where Celery is to find the job's state."""
    return f"{hand.ledger.names.namespace}:task"


def message() -> Delivery:
    """A message of the job `j`."""
    arguments = ("celery_llama.generate", "j", {"kwargs": {"job": {"prompt": "x"}}}, b"", "", "")
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


# another model has begun it


def begun(hand: Hand, *, fingerprint: str, says: bool = True, **job: Any) -> None:
    """A worker that is dead by now had the job, and said something or not."""
    hand.claim("j", "dead", encode_body({"prompt": "x", **job}), alive=False)
    started = encode_event(1, 1, "started", {"model": "other", "fingerprint": fingerprint})
    hand.do(hand.ledger.emit([Emission("j", 1, [(1, started)])]))
    if says:
        hand.say("j", "text", first_seq=2)


@pytest.mark.parametrize(
    ("fingerprint", "job"),
    [("f", {}), ("f+b", {"lora": [{"name": "blue"}]}), ("", {})],
    ids=["same", "lora", "unknown"],
)
def test_what_the_same_model_has_begun_goes_on(
    admission: Admission[JobAttempt], around: Around, hand: Hand, fingerprint: str, job: dict[str, Any]
) -> None:
    begun(hand, fingerprint=fingerprint, **job)

    admission.admit(message(), around)

    wait_until(lambda: around.sent, "the engine has it")
    assert not around.closed
    assert around.transcripts[0].started, "readers see a pause, not a restart"


@pytest.mark.parametrize(
    ("fingerprint", "job"),
    [("g", {}), ("f+b", {}), ("f+c", {"lora": [{"name": "blue"}]}), ("f+c", {"lora": [{"name": "red"}]})],
    ids=["another model", "without the adapter", "another adapter", "an adapter that is not here"],
)
def test_what_another_model_has_begun_fails_if_nobody_has_it(
    admission: Admission[JobAttempt], around: Around, hand: Hand, fingerprint: str, job: dict[str, Any]
) -> None:
    begun(hand, fingerprint=fingerprint, **job)
    hand.vouch("unfit", WorkerFacts(fingerprint="h"))

    admission.admit(message(), around)

    wait_until(lambda: around.closed, "the job ends")
    assert (around.closed, around.errors[0].code) == (["failed"], "model_mismatch")
    assert not around.sent


def test_what_another_model_has_begun_goes_back_after_a_while_if_somebody_has_it(
    admission: Admission[JobAttempt], around: Around, hand: Hand
) -> None:
    begun(hand, fingerprint="g+c", lora=[{"name": "red"}])
    hand.vouch("fit", WorkerFacts(fingerprint="g", adapters={"red": "c", "green": "d"}))

    admission.admit(message(), around)
    wait_until(lambda: admission._postponed._waiting, "the job waits")
    admission._submit(admission._postponed.flush)

    assert wait_until(lambda: around.closed, "the job ends here") == ["handed_back"]
    assert not around.sent


def test_what_another_model_has_claimed_and_said_nothing_of_begins_anew(
    admission: Admission[JobAttempt], around: Around, hand: Hand
) -> None:
    begun(hand, fingerprint="g", says=False)

    admission.admit(message(), around)

    wait_until(lambda: around.sent, "the engine has it")
    assert not around.transcripts[0].started, "readers are told the new model"
