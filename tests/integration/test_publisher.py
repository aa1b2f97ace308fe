"""The outbox on a real ledger: order, ends, fences, cancels, lost answers."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from celery_llama.client.client import Client
from celery_llama.client.connection import connect
from celery_llama.ledger.replay import read_events
from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.events import AnyEvent
from celery_llama.protocol.results import JobError
from celery_llama.settings import Settings
from celery_llama_worker.bookkeeping.outcome import FENCED, HANDED_BACK, Outcome
from celery_llama_worker.bookkeeping.publisher import Publisher
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.outputs import Began, Ended, EndReason, Output, Text
from celery_llama_worker.engine.plan import Sampled
from tests.integration.hand import Hand
from tests.waiting import wait_until

SECONDS = 30.0
OUTBOX_TOKENS = 50


class Desk:
    """A publisher whose engine and pool are played by the test."""

    def __init__(self, settings: Settings, connection: Any) -> None:
        self.settings = settings
        self.connection: redis.Redis = connection
        self.ended_jobs: queue.SimpleQueue[tuple[str, EndReason]] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[tuple[str, Outcome, bytes | None]] = queue.SimpleQueue()
        self.crashes: list[BaseException] = []
        self.publisher = Publisher(
            connection,
            settings.ledger,
            lambda job_id, reason: self.ended_jobs.put((job_id, reason)),
            OUTBOX_TOKENS,
            self.crashes.append,
        )

    def open(self, job_id: str, attempt: int = 1) -> None:
        """Announce an attempt; its end is noted with the status that the ledger has at that moment."""
        key = self.settings.names.job(job_id)

        def on_end(outcome: Outcome) -> None:
            self.outcomes.put((job_id, outcome, cast(bytes | None, self.connection.hget(key, "status"))))

        self.publisher.open(
            Transcript(job_id, attempt, attempt, "worker", "model", lambda token: bytes([token])), on_end
        )

    def events(self, job_id: str) -> list[AnyEvent]:
        """What the job's stream holds."""
        with connect(self.settings) as connection:
            return list(read_events(connection, self.settings.names, job_id))

    def outcome(self) -> tuple[str, Outcome, bytes | None]:
        """The next end."""
        return self.outcomes.get(timeout=SECONDS)


@pytest.fixture
def desk(settings: Settings, connection: redis.Redis) -> Iterator[Desk]:
    desk = Desk(settings, connection)
    desk.publisher.start()
    yield desk
    desk.publisher.stop(SECONDS)
    assert desk.crashes == []


def text(job_id: str, shown: str, attempt: int = 1) -> Text:
    return Text(job_id, attempt, 0, shown, [Sampled(ord(character)) for character in shown], None)


def done(job_id: str, attempt: int = 1) -> list[Output]:
    return [Text(job_id, attempt, 0, "", [], "stop"), Ended(job_id, attempt, "done")]


def test_what_the_engine_says_is_in_the_stream_in_order_and_then_the_job_has_ended(desk: Desk, hand: Hand) -> None:
    hand.claim("job")
    desk.open("job")
    desk.publisher.put([Began("job", 1, 0)])
    for number in range(30):
        desk.publisher.put([text("job", f"{number} ")])
    desk.publisher.put(done("job"))
    job_id, outcome, status = desk.outcome()

    events = desk.events("job")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert (events[0].type, events[-1].type) == ("started", "finished")
    assert delivered(events).choices[0].text == "".join(f"{number} " for number in range(30))
    assert (job_id, outcome.kind) == ("job", "ended")
    assert outcome.result is not None
    assert outcome.result.text == delivered(events).choices[0].text
    assert status == b"completed", "the end is reported when the result is in Redis, not earlier"


def test_many_jobs_are_written_in_one_flush(desk: Desk, hand: Hand) -> None:
    names = [f"job-{number}" for number in range(300)]
    for name in names:
        hand.claim(name)
        desk.open(name)
    desk.publisher.put([output for name in names for output in (text(name, name), *done(name))])
    ended = {desk.outcome()[0] for _ in names}

    assert ended == set(names)
    assert all(delivered(desk.events(name)).choices[0].text == name for name in names)


def test_a_reader_sees_every_event_on_the_channel_that_is_in_the_stream(desk: Desk, hand: Hand, client: Client) -> None:
    job = client.submit(prompt="x")
    stream = job.stream(timeout=SECONDS)
    hand.claim(job.id)
    desk.open(job.id)
    desk.publisher.put([Began(job.id, 1, 0), text(job.id, "a")])
    live = [next(stream), next(stream)]
    desk.publisher.put([text(job.id, "b"), *done(job.id)])
    live += list(stream)

    assert live == [event.model_copy(update={"job_id": job.id}) for event in desk.events(job.id)]


def test_an_attempt_that_has_lost_its_job_writes_nothing_more_and_stops(desk: Desk, hand: Hand) -> None:
    hand.claim("job", "dead", alive=False)
    desk.open("job")
    desk.publisher.put([text("job", "a")])
    wait_until(lambda: desk.events("job"), "the first event is written")
    hand.claim("job", "heir")
    desk.publisher.put([text("job", "late")])

    assert desk.ended_jobs.get(timeout=SECONDS) == ("job", "dropped")
    desk.publisher.put([Ended("job", 1, "dropped")])
    assert desk.outcome()[1:] == (FENCED, b"running")
    assert delivered(desk.events("job")).choices[0].text == "a"


def test_an_attempt_that_ends_after_it_has_lost_its_job_is_told_so(desk: Desk, hand: Hand) -> None:
    hand.claim("job", "dead", alive=False)
    desk.open("job")
    hand.claim("job", "heir")
    desk.publisher.put(done("job"))

    assert desk.outcome()[1:] == (FENCED, b"running")
    assert desk.events("job") == []


def test_two_attempts_of_a_job_are_kept_apart(desk: Desk, hand: Hand) -> None:
    hand.claim("job", "dead", alive=False)
    desk.open("job", 1)
    hand.claim("job", "heir")
    desk.open("job", 2)
    desk.publisher.put([text("job", "late", 1), text("job", "new", 2), *done("job", 2)])
    _, outcome, _ = desk.outcome()

    assert outcome.result is not None
    assert (outcome.result.text, outcome.result.attempts) == ("new", 2)
    assert [event.attempt for event in desk.events("job")] == [2, 2]


def test_a_cancel_that_was_missed_comes_back_as_the_answer_to_the_next_event(
    desk: Desk, hand: Hand, client: Client
) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)
    desk.open(job.id)
    assert job.cancel() == "requested"
    desk.publisher.put([text(job.id, "a")])

    assert desk.ended_jobs.get(timeout=SECONDS) == (job.id, "cancelled")
    desk.publisher.put([Text(job.id, 1, 0, "b", [Sampled(98)], "cancelled"), Ended(job.id, 1, "cancelled")])
    _, outcome, status = desk.outcome()
    assert outcome.result is not None
    assert (outcome.result.text, outcome.result.status, status) == ("ab", "cancelled", b"cancelled")


def test_a_job_that_is_handed_back_may_be_claimed_at_once(desk: Desk, hand: Hand) -> None:
    hand.claim("job")
    desk.open("job")
    desk.publisher.put([text("job", "a"), Ended("job", 1, "handed_back")])

    assert desk.outcome()[1:] == (HANDED_BACK, b"queued")
    assert [event.type for event in desk.events("job")] == ["token"]
    assert hand.claim("job", "heir").attempt == 2


def test_a_job_that_never_reached_the_engine_ends_like_any_other(desk: Desk, hand: Hand) -> None:
    hand.claim("job")
    desk.open("job")
    desk.publisher.close("job", 1, "failed", JobError(code="invalid_request", message="no"))
    _, outcome, status = desk.outcome()

    assert outcome.result is not None
    assert outcome.result.error == JobError(code="invalid_request", message="no")
    assert status == b"failed"
    assert [event.type for event in desk.events("job")] == ["failed"]


def test_what_is_said_about_a_job_that_has_ended_is_not_heard(desk: Desk, hand: Hand) -> None:
    for name in ("job", "other"):
        hand.claim(name)
        desk.open(name)
    desk.publisher.put(done("job"))
    desk.outcome()
    desk.publisher.put([text("job", "late"), Ended("job", 1, "cancelled"), *done("other")])

    assert desk.outcome()[0] == "other"
    assert [event.type for event in desk.events("job")] == ["token", "finished"]
    assert all("late" not in event.text for event in desk.events("job"))


class Forgetful:
    """A connection whose first answers get lost: the server has done it, and the caller hears of an error."""

    def __init__(self, connection: redis.Redis, lost_answers: int) -> None:
        self._connection, self._lost = connection, lost_answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            answer = getattr(self._connection, name)(*arguments)
            if name in {"eval", "evalsha"} and self._lost:
                self._lost -= 1
                raise redis.ConnectionError("the answer is lost")
            return answer

        return call


@pytest.mark.parametrize("lost_answers", [1, 2, 3])
def test_a_repeated_call_is_harmless(
    settings: Settings, connection: redis.Redis, hand: Hand, lost_answers: int
) -> None:
    hand.claim("warm-up")
    hand.say("warm-up", "the scripts are known")
    hand.claim("job")
    desk = Desk(settings, Forgetful(connection, lost_answers))
    desk.open("job")
    desk.publisher.put([text("job", "a")])
    desk.publisher.put([text("job", "b"), *done("job")])
    desk.publisher.start()
    _, outcome, status = desk.outcome()
    desk.publisher.stop(SECONDS)

    assert outcome.result is not None
    assert (outcome.result.text, status) == ("ab", b"completed")
    events = desk.events("job")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert delivered(events).choices[0].text == "ab"
