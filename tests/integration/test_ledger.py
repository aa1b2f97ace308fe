"""The ledger's rules, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_llama.ledger import queries
from celery_llama.ledger.ledger import Emission, Ledger, Submission, Worker
from celery_llama.ledger.replay import PAGE_ENTRIES, read_events
from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.events import AnyEvent
from celery_llama.protocol.names import Names
from celery_llama.protocol.results import JobInfo
from celery_llama.protocol.workers import WorkerFacts
from tests.integration.hand import Hand

Enter = Callable[..., Submission]


@pytest.fixture
def enter(hand: Hand, ledger: Ledger) -> Enter:
    def enter(
        job_id: str = "j", prompt: str = "x", *, expires: float | None = None, key: str | None = None, **fields: Any
    ) -> Submission:
        body = {"prompt": prompt, **fields}
        return hand.do(ledger.submit(job_id, body, priority=5, expires_seconds=expires, idempotency_key=key))

    return enter


@pytest.fixture
def info(connection: redis.Redis, names: Names) -> Callable[[], JobInfo]:
    return lambda: queries.ask(connection, queries.job_info(names, "j"))


@pytest.fixture
def events(connection: redis.Redis, names: Names) -> Callable[[], list[AnyEvent]]:
    return lambda: list(read_events(connection, names, "j"))


Info = Callable[[], JobInfo]
Events = Callable[[], list[AnyEvent]]


# submitting


def test_a_submitted_job_is_open_and_queued(enter: Enter, info: Info, connection: redis.Redis, names: Names) -> None:
    assert enter(metadata={"a": "b"}) == Submission("created", "j")

    assert (info().status, info().attempts, info().metadata) == ("queued", 0, {"a": "b"})
    assert connection.zrange(names.open, 0, -1) == [b"j"]
    assert connection.ttl(names.job("j")) == -1


def test_the_same_id_is_entered_once(enter: Enter) -> None:
    enter()

    assert enter(prompt="y") == Submission("existing", "j")


def test_the_same_key_and_body_is_the_same_job(enter: Enter) -> None:
    enter(key="k")

    assert enter("other", key="k") == Submission("existing", "j")
    assert enter("other", prompt="y", key="k") == Submission("conflict", "j")


def test_the_key_of_a_failed_job_may_be_used_again(enter: Enter, hand: Hand) -> None:
    enter(key="k")
    hand.claim("j")
    hand.finish("j", seq=1, status="failed")

    assert enter("other", key="k") == Submission("created", "other")


def test_the_key_of_a_completed_job_still_names_it(enter: Enter, hand: Hand) -> None:
    enter(key="k")
    hand.claim("j")
    hand.finish("j", seq=1)

    assert enter("other", key="k") == Submission("existing", "j")


# workers


def workers(hand: Hand) -> dict[str, WorkerFacts]:
    owners = queries.ask(hand.connection, queries.worker_owners(hand.ledger.names))
    return queries.ask(hand.connection, queries.living(hand.ledger.names, owners)) if owners else {}


def test_a_worker_that_vouches_is_there_with_what_it_says_of_itself_until_it_resigns(hand: Hand, names: Names) -> None:
    facts = WorkerFacts(model="m", fingerprint="f", kind="embed", slots=4, reproducible=True, started=1.5)
    hand.vouch("w", facts)
    hand.vouch("other")

    assert workers(hand) == {"other": WorkerFacts(), "w": facts}
    assert 0 < hand.connection.ttl(names.worker_name("w")) <= hand.ledger.lease_seconds

    hand.do(hand.ledger.resign(Worker("w", "w", facts)))
    assert workers(hand) == {"other": WorkerFacts()}
    assert not hand.connection.exists(names.worker_name("w"))


def test_a_worker_whose_lease_has_lapsed_is_not_there_and_is_forgotten(hand: Hand, names: Names) -> None:
    hand.vouch("dead")
    hand.connection.delete(names.lease("dead"))
    assert workers(hand) == {}

    hand.connection.zadd(names.workers, {"dead": 1})
    hand.vouch("w")

    assert hand.connection.zrange(names.workers, 0, -1) == [b"w"]


@pytest.mark.parametrize("lease", ["1", "", '{"kind":"sing"}', '{"model":"m","hands":2}'])
def test_whatever_a_lease_says_its_worker_is_alive(hand: Hand, names: Names, lease: str) -> None:
    hand.vouch("w")
    hand.connection.set(names.lease("w"), lease)

    assert list(workers(hand)) == ["w"]


def test_a_worker_s_name_is_left_to_who_has_it(hand: Hand, names: Names) -> None:
    hand.do(hand.ledger.vouch(Worker("one", "name", WorkerFacts()), 0, [], []))
    hand.do(hand.ledger.vouch(Worker("two", "name", WorkerFacts()), 0, [], []))
    hand.do(hand.ledger.resign(Worker("two", "name", WorkerFacts())))

    assert hand.connection.get(names.worker_name("name")) == b"one"


# claiming


def test_a_claim_returns_the_body_and_the_attempt(enter: Enter, hand: Hand, info: Info) -> None:
    enter()

    claim = hand.claim("j")

    assert (claim.outcome, claim.attempt, claim.body) == ("claimed", 1, b'{"prompt":"x"}')
    assert (info().status, info().worker) == ("running", "worker-1")


def test_a_job_that_nobody_submitted_is_entered_from_its_message(hand: Hand, info: Info) -> None:
    claim = hand.claim("j", body='{"prompt":"x","metadata":{"a":"b"}}')

    assert (claim.outcome, claim.body) == ("claimed", b'{"prompt":"x","metadata":{"a":"b"}}')
    assert info().metadata == {"a": "b"}


@pytest.mark.parametrize("body", ["", "null", "[1]", '{"metadata":[1]}', '{"metadata":1}', "[" * 2000, "\udcff"])
def test_a_message_whose_body_makes_no_sense_can_be_claimed(hand: Hand, info: Info, body: str) -> None:
    assert hand.do(hand.ledger.claim("j", "w", body.encode(errors="surrogateescape"), 5)).outcome == "claimed"
    assert info().metadata == {}


def test_a_job_of_a_live_worker_is_busy(enter: Enter, hand: Hand) -> None:
    enter()
    hand.claim("j", "worker-1")

    assert hand.claim("j", "worker-2").outcome == "busy"
    assert hand.claim("j", "worker-1").attempt == 2


def test_a_claim_that_is_repeated_because_its_answer_was_lost_is_one_claim(enter: Enter, hand: Hand) -> None:
    enter("j")
    claim = hand.ledger.claim("j", "worker-1", "{}", 5)

    assert [hand.do(claim).attempt, hand.do(claim).attempt] == [1, 1]
    assert hand.do(hand.ledger.claim("j", "worker-1", "{}", 5)).attempt == 2
    assert hand.do(claim).attempt == 3, "it is not the last claim any more"


def test_a_live_worker_keeps_a_job_only_as_long_as_it_vouches_for_it(enter: Enter, hand: Hand, names: Names) -> None:
    enter("j")
    hand.claim("j", "worker-1")
    assert 0 < hand.claim("j", "worker-2").lease_left_seconds <= hand.ledger.lease_seconds

    hand.connection.zincrby(names.open, -hand.ledger.lease_seconds, "j")

    assert hand.claim("j", "worker-2").attempt == 2


def test_nobody_is_asked_to_cancel_a_job_that_its_worker_does_not_vouch_for(
    enter: Enter, hand: Hand, names: Names
) -> None:
    enter("j")
    hand.claim("j", "worker-1")
    hand.connection.zincrby(names.open, -hand.ledger.lease_seconds, "j")

    assert hand.do(hand.ledger.cancel("j")) == "closed"


def test_a_worker_vouches_only_forward_and_only_for_what_is_there(enter: Enter, hand: Hand, names: Names) -> None:
    enter("j")
    connection = hand.connection
    connection.zadd(names.unacked_index, {"tag": 200})
    ahead = connection.zincrby(names.open, 1_000, "j")

    worker = Worker("worker-1", "worker", WorkerFacts())
    hand.do(hand.ledger.vouch(worker, 100, ["j", "gone"], ["tag", "gone"]))
    assert connection.zrange(names.unacked_index, 0, -1, withscores=True) == [(b"tag", 200)]
    assert connection.zrange(names.open, 0, -1, withscores=True) == [(b"j", ahead)]

    hand.do(hand.ledger.vouch(worker, 300, ["j"], ["tag"]))
    assert connection.zscore(names.unacked_index, "tag") == 300


def test_a_job_whose_worker_died_is_claimed_by_the_next(enter: Enter, hand: Hand, names: Names) -> None:
    enter()
    hand.claim("j", "worker-1")
    hand.connection.delete(names.lease("worker-1"))

    assert hand.claim("j", "worker-2").attempt == 2
    assert hand.say("j", "late", attempt=1) == "fenced"
    assert hand.finish("j", seq=1, attempt=1) == "fenced"
    assert hand.do(hand.ledger.release("j", 1)) == "fenced"


def test_a_job_that_ended_is_claimed_with_its_result(enter: Enter, hand: Hand) -> None:
    enter()
    hand.claim("j")
    hand.finish("j", "text", seq=1)

    claim = hand.claim("j", "worker-2")

    assert claim.outcome == "ended"
    assert claim.result is not None
    assert claim.result.text == "text"


def test_a_job_whose_end_celery_knows_is_claimed_without_its_result(enter: Enter, hand: Hand) -> None:
    """Told a second time, Celery would call the job's links a second time."""
    enter()
    hand.claim("j")
    hand.finish("j", "text", seq=1)
    hand.do(hand.ledger.acknowledge("j"))

    claim = hand.claim("j", "worker-2")

    assert (claim.outcome, claim.result) == ("ended", None)


def test_an_attempt_that_was_handed_back_does_not_count(enter: Enter, hand: Hand, info: Info) -> None:
    enter()
    hand.claim("j")

    assert hand.do(hand.ledger.release("j", 1)) == "released"
    assert (info().status, info().worker) == ("queued", None)
    claim = hand.claim("j", "worker-2")
    assert (claim.attempt, claim.released) == (2, 1)


# writing


def test_events_written_twice_are_in_the_stream_once(enter: Enter, hand: Hand, events: Events) -> None:
    enter()
    hand.claim("j")
    hand.say("j", "a", "b")

    assert hand.say("j", "a", "b", "c") == "ok"
    assert [event.seq for event in events()] == [1, 2, 3]


def test_each_job_of_a_flush_gets_its_own_answer(enter: Enter, hand: Hand, ledger: Ledger) -> None:
    for job_id in ("j", "k", "l"):
        enter(job_id)
    hand.claim("j")
    hand.claim("k")
    hand.do(ledger.cancel("k"))

    emissions = [Emission(job_id, 1, [(1, '{"a":1}')]) for job_id in ("j", "k", "l")]

    assert hand.do(ledger.emit(emissions)) == ["ok", "cancel", "fenced"]


def test_a_flush_survives_a_server_that_has_forgotten_its_scripts(enter: Enter, hand: Hand, events: Events) -> None:
    enter()
    hand.claim("j")
    hand.connection.script_flush()

    assert hand.say("j", "a") == "ok"
    assert len(events()) == 1


def test_a_stream_longer_than_a_page_is_read_whole(enter: Enter, hand: Hand, names: Names, events: Events) -> None:
    enter()
    hand.claim("j")
    texts = [f"{number} " for number in range(PAGE_ENTRIES * 2)]
    hand.say("j", *texts)

    assert delivered(events()).choices[0].text == "".join(texts)
    assert [event.seq for event in read_events(hand.connection, names, "j", after=1999)] == [2000]


# ending


def test_the_end_is_event_result_and_status_at_once(
    enter: Enter, hand: Hand, info: Info, events: Events, names: Names
) -> None:
    enter()
    hand.claim("j")
    hand.say("j", "a")

    assert hand.finish("j", "a", seq=2) == "finished"
    assert hand.finish("j", "a", seq=2) == "repeated"
    assert hand.finish("j", "b", seq=2) == "fenced"
    assert hand.say("j", "late", first_seq=3) == "fenced"

    assert info().status == "completed"
    assert [event.terminal for event in events()] == [False, True]
    assert not hand.connection.hexists(names.job("j"), "body")
    assert 0 < hand.connection.ttl(names.events("j")) <= hand.ledger.events_ttl_seconds
    assert 0 < hand.connection.ttl(names.job("j")) <= hand.ledger.result_ttl_seconds


def test_a_failed_job_is_listed_with_its_error_and_can_be_retried(
    enter: Enter, hand: Hand, info: Info, events: Events, names: Names
) -> None:
    enter(key="k")
    hand.claim("j")
    hand.say("j", "a")
    hand.finish("j", seq=2, status="failed")
    assert queries.ask(hand.connection, queries.failed_jobs(names, 10)) == ["j"]
    assert info().error is not None

    replay = hand.do(hand.ledger.retry("j"))

    assert (replay.outcome, replay.body, replay.priority) == ("queued", b'{"prompt":"x"}', 5)
    assert events() == []
    assert (info().status, info().error) == ("queued", None)
    assert hand.connection.ttl(names.job("j")) == -1
    assert queries.ask(hand.connection, queries.failed_jobs(names, 10)) == []
    claim = hand.claim("j")
    assert (claim.attempt, claim.released) == (2, 1)
    assert hand.say("j", "late", attempt=1) == "fenced"


def test_only_a_failed_job_can_be_retried(enter: Enter, hand: Hand, ledger: Ledger) -> None:
    assert hand.do(ledger.retry("j")).outcome == "unknown"
    enter()
    assert hand.do(ledger.retry("j")).outcome == "not_failed"


# cancelling and expiring


def test_a_queued_job_is_cancelled_at_once(enter: Enter, hand: Hand, info: Info, events: Events) -> None:
    enter()

    assert hand.do(hand.ledger.cancel("j")) == "closed"
    assert hand.do(hand.ledger.cancel("j")) == "ended"
    assert info().status == "cancelled"
    assert [event.terminal for event in events()] == [True]
    assert hand.claim("j").outcome == "ended"


@pytest.mark.parametrize("how", ["finish", "close"])
def test_a_job_is_open_until_celery_has_been_told(enter: Enter, hand: Hand, names: Names, how: str) -> None:
    """Its worker may die a moment after the end, and its message be lost."""
    enter()
    assert hand.do(hand.ledger.acknowledge("j")) == "open"
    if how == "close":
        hand.do(hand.ledger.cancel("j"))
        assert hand.connection.ttl(names.job("j")) == -1, "its message may come after a day and must find how it ended"
    else:
        hand.claim("j")
        hand.finish("j", seq=1)
    assert hand.connection.zcard(names.open) == 1

    assert hand.do(hand.ledger.acknowledge("j")) == "acknowledged"
    assert hand.connection.zcard(names.open) == 0
    assert 0 < hand.connection.ttl(names.job("j")) <= hand.ledger.result_ttl_seconds


def test_a_job_that_was_put_back_into_the_queue_is_open_whatever_celery_was_told_before(
    enter: Enter, hand: Hand, names: Names
) -> None:
    enter()
    hand.claim("j")
    hand.finish("j", seq=1, status="failed")
    hand.do(hand.ledger.retry("j"))

    assert hand.do(hand.ledger.acknowledge("j")) == "open"
    assert hand.connection.zcard(names.open) == 1


def test_a_running_job_is_cancelled_by_its_worker(enter: Enter, hand: Hand, info: Info) -> None:
    enter()
    hand.claim("j")

    assert hand.do(hand.ledger.cancel("j")) == "requested"
    assert hand.say("j", "a") == "cancel"
    assert (info().status, info().cancel_requested) == ("running", True)


def test_the_wish_to_cancel_outlives_the_worker(enter: Enter, hand: Hand, names: Names) -> None:
    enter()
    hand.claim("j", "worker-1")
    hand.do(hand.ledger.cancel("j"))
    hand.connection.delete(names.lease("worker-1"))

    assert hand.claim("j", "worker-2").cancel_requested


def test_a_job_whose_worker_died_is_cancelled_with_what_it_wrote(
    enter: Enter, hand: Hand, events: Events, names: Names
) -> None:
    enter()
    hand.claim("j", alive=False)
    hand.say("j", "grün ", '"quoted" ', "\\ / \x00")

    assert hand.do(hand.ledger.cancel("j")) == "closed"

    result = queries.ask(hand.connection, queries.outcome(names, "j"))
    assert result is not None
    assert (result.status, result.attempts, result.usage.completion_tokens) == ("cancelled", 1, 3)
    assert result.text == delivered(events()).choices[0].text == 'grün "quoted" \\ / \x00'
    assert hand.say("j", "late", first_seq=4) == "fenced"
    assert hand.finish("j", "other", seq=4, status="cancelled") == "fenced"
    assert [event.seq for event in events()] == [1, 2, 3, 4]


def test_a_job_that_nobody_knows_cannot_be_cancelled(hand: Hand) -> None:
    assert hand.do(hand.ledger.cancel("j")) == "unknown"


def test_a_job_that_did_not_begin_in_time_fails(enter: Enter, hand: Hand, info: Info, events: Events) -> None:
    enter(expires=-1.0)

    assert hand.claim("j").outcome == "expired"
    assert hand.do(hand.ledger.expire("j")) == "closed"

    error = info().error
    assert error is not None
    assert error.code == "expired"
    assert [event.type for event in events()] == ["failed"]
    assert hand.do(hand.ledger.retry("j")).outcome == "queued"
    assert hand.claim("j").outcome == "claimed"


def test_a_job_that_has_begun_does_not_expire(enter: Enter, hand: Hand, names: Names) -> None:
    enter(expires=1000.0)
    hand.claim("j")

    assert hand.connection.zcard(names.expiring) == 0
    assert hand.do(hand.ledger.expire("j")) == "begun"


@pytest.mark.parametrize("ending", ["failed", "expired"])
def test_the_list_of_failed_jobs_forgets_those_whose_data_is_gone(
    enter: Enter, hand: Hand, connection: redis.Redis, names: Names, ending: str
) -> None:
    connection.zadd(names.failed, {"old": 1})
    enter(expires=1.0 if ending == "expired" else None)

    if ending == "expired":
        assert hand.do(hand.ledger.expire("j")) == "closed"
    else:
        hand.claim("j")
        assert hand.finish("j", seq=1, status="failed") == "finished"

    assert connection.zrange(names.failed, 0, -1) == [b"j"]
