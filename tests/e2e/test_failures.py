"""The failure table of docs/architecture.md, with real processes: what users see when something breaks.

A job that was never interrupted says what it says undisturbed. One that another worker goes on with says that up to
then; what follows was computed from cells that were read, not written, and is not promised to be the same.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_llama.celery_app import PRIORITIES
from celery_llama.protocol.errors import IdempotencyConflict
from tests.e2e.stage import (
    PATIENCE_SECONDS,
    Stage,
    stream,
    wait_for_celery,
    wait_for_log,
    wait_for_status,
    wait_for_tokens,
    whole,
)
from tests.faulty_worker import HANG, POISON
from tests.scene import scene
from tests.waiting import wait_until

#: Makes a job of a few hundred tokens last a few seconds.
SLOWLY = 0.01


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with scene(stage.server, stage.workers):
        yield stage
        stage.close()


# the server goes away


def test_a_job_goes_on_when_the_server_comes_back(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY, outbox_tokens=100)
    text = stage.undisturbed_text(max_tokens=300)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    stage.server.stop()
    wait_for_log(worker, "Redis does not take events")
    stage.server.start()

    result = whole(job)
    assert (result.text, result.attempts) == (text, 1)
    assert worker.exit_code is None


def test_a_worker_waits_for_a_server_that_starts_later(stage: Stage) -> None:
    worker = stage.worker(connect_seconds=PATIENCE_SECONDS)
    wait_for_log(worker, "waiting for Redis")

    stage.server.start()

    assert whole(stage.submit()).status == "incomplete"


def test_a_job_that_runs_when_all_connections_are_cut_is_adopted(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    text = stage.undisturbed_text(max_tokens=300)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    stage.server.cut_connections()

    result = whole(job)
    assert (result.text, result.attempts) == (text, 1)
    wait_until(lambda: not stage.left_over(), "the message is acknowledged")
    assert worker.exit_code is None
    (figures,) = (stage.app.control.inspect(timeout=5).stats() or {}).values()
    assert figures["pool"]["adopted"] >= 1
    assert figures["pool"]["held"] == 0


def test_a_server_that_answers_nothing_for_a_while_costs_that_while(stage: Stage) -> None:
    """Half-open connections: nothing is reset, nothing comes, and the calls that were given up are carried out late."""
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    text = stage.undisturbed_text(max_tokens=300)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    stage.server.freeze()
    wait_for_log(worker, "Redis does not take events")
    stage.server.thaw()

    result = whole(job)
    assert (result.text, result.attempts) == (text, 1)
    assert stage.undisturbed_text(max_tokens=300) == text, "the worker takes new jobs"


def test_a_worker_that_is_stopped_while_the_server_is_away_ends(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    stage.server.stop()
    wait_for_log(worker, "Redis does not take events")
    assert worker.stop() == 0
    stage.server.start()
    stage.worker()

    assert whole(job).usage.completion_tokens == 300


# a worker goes away


def test_a_wedged_worker_ends_and_another_goes_on(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY, stall_seconds=2)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    worker.fail_next_decode(HANG)
    stage.worker()

    assert worker.wait() == 70
    result = whole(job)
    assert (result.usage.completion_tokens, result.attempts) == (300, 2)


def test_a_worker_that_has_lost_its_job_drops_it_and_works_on(stage: Stage) -> None:
    stage.server.start()
    stopped = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    stopped.signal(signal.SIGSTOP)
    other = stage.worker(step_seconds=SLOWLY)
    next(event for event in stream(job) if event.attempt == 2)
    stopped.signal(signal.SIGCONT)

    result = whole(job)
    assert (result.usage.completion_tokens, result.attempts) == (300, 2)
    wait_for_log(stopped, "has another owner now")
    assert other.stop() == 0
    assert whole(stage.submit(max_tokens=30)).usage.completion_tokens == 30


def test_a_job_that_kills_its_workers_is_failed_kept_and_may_be_replayed(stage: Stage) -> None:
    stage.server.start()
    poison = stage.submit(prompt=POISON)
    for _ in range(3):
        assert stage.worker().wait() == 9
    stage.worker()

    events = list(stream(poison))
    assert [event.type for event in events] == ["failed"]
    wait_for_celery(stage, poison, "FAILURE")
    (listed,) = stage.cli("status", "--failed")
    assert (listed["id"], listed["error"]["code"]) == (poison.id, "max_attempts_exceeded")

    assert stage.cli("retry", poison.id) == [{"id": poison.id, "outcome": "queued"}]
    assert stage.workers[-1].wait() == 9
    assert stage.cli("status", "--failed") == []


def test_the_neighbours_of_a_job_that_kills_its_worker_go_on(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    poison = stage.submit(prompt=POISON)
    assert worker.wait() == 9
    poison.cancel()
    stage.worker()

    assert whole(job).usage.completion_tokens == 300


# a message goes away


def test_a_job_whose_message_vanished_from_the_queue_is_published_again(stage: Stage) -> None:
    stage.server.start()
    job = stage.submit(priority=5)
    with stage.server.connection() as connection:
        assert connection.delete(f"stage\x06\x16{PRIORITIES[5]}") == 1
    worker = stage.worker()

    assert whole(job).attempts == 1
    assert "had lost its message" in worker.log()


def test_a_job_whose_message_vanished_with_its_worker_is_published_again(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)

    with stage.server.connection() as connection:
        assert connection.delete(stage.settings.names.unacked, stage.settings.names.unacked_index) == 2
    worker.kill()
    stage.worker()

    result = whole(job)
    assert (result.usage.completion_tokens, result.attempts) == (300, 2)


def test_a_job_goes_on_soon_though_its_message_went_to_a_worker_that_did_not_have_it(stage: Stage) -> None:
    """Cut connections put the message back; another worker gets it; then the job's own worker dies."""
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY, slots=1)
    job = stage.submit(max_tokens=600)
    wait_for_tokens(job, 10)
    other = stage.worker(step_seconds=SLOWLY)
    wait_for_log(other, "ready")
    names = stage.settings.names
    with stage.server.connection() as connection:
        (tag,) = connection.hkeys(names.unacked)
    worker.signal(signal.SIGSTOP)  # so that the other one gets the message, while the job still counts as this one's
    with stage.app.connection() as broker:
        broker.channel().qos.restore_by_tag(tag.decode())
    wait_until(lambda: not stage.left_over().get("queue 5"), "the message is taken")
    worker.signal(signal.SIGCONT)
    worker.kill()

    result = whole(job)
    assert (result.usage.completion_tokens, result.attempts) == (600, 2)
    assert "had lost its message" not in other.log()


# somebody wants it ended


def test_a_job_is_cancelled_while_no_worker_is_up(stage: Stage) -> None:
    stage.server.start()
    job = stage.submit()

    assert job.cancel() == "closed"
    assert [event.type for event in stream(job)] == ["finished"]
    assert whole(job).status == "cancelled"

    stage.worker()
    wait_for_celery(stage, job, "REVOKED")


def test_celery_hears_of_a_cancelled_job_whose_message_vanished(stage: Stage) -> None:
    stage.server.start()
    job = stage.submit(priority=0)
    with stage.server.connection() as connection:
        assert connection.delete("stage") == 1
    assert job.cancel() == "closed"

    stage.worker()

    wait_for_celery(stage, job, "REVOKED")
    wait_until(lambda: not stage.left_over(), "nothing is left")


def test_a_job_whose_worker_has_died_is_cancelled_with_what_it_has_said(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=500)
    wait_for_tokens(job, 10)
    worker.kill()

    wait_until(lambda: job.cancel() != "requested", "the worker's lease has lapsed")

    result = whole(job)
    assert result.status == "cancelled"
    assert result.usage.completion_tokens >= 10


@pytest.mark.parametrize("how", ["cancel", "revoke"])
@pytest.mark.parametrize("phase", ["queued", "waiting", "reading", "decoding"])
def test_a_job_is_cancelled_in_every_phase_and_its_neighbour_does_not_notice(
    stage: Stage, phase: str, how: str
) -> None:
    stage.server.start()
    full = phase in ("queued", "waiting")
    stage.worker(step_seconds=SLOWLY, slots=1 if full else 2, lookahead=int(phase == "waiting"), chunk_tokens=8)
    text = stage.undisturbed_text(max_tokens=100)
    neighbour = stage.submit(max_tokens=100)
    wait_for_tokens(neighbour)
    job = stage.submit(max_tokens=500, prompt="the other hand " * (40 if phase == "reading" else 1))
    if phase != "queued":
        wait_for_status(job, "running")
    if phase == "decoding":
        wait_for_tokens(job, 3)

    if how == "cancel":
        assert job.cancel() == ("closed" if phase == "queued" else "requested")
    else:
        stage.app.control.revoke(job.id, terminate=True)

    result = whole(job)
    assert (result.status, result.finish_reason) == ("cancelled", "cancelled")
    assert (result.text != "") == (phase == "decoding")
    assert whole(neighbour).text == text
    wait_for_celery(stage, job, "REVOKED")


# time passes


def test_a_job_that_expired_while_no_worker_was_up_fails_when_one_comes(stage: Stage) -> None:
    stage.server.start()
    job = stage.submit(expires=0.001)
    stage.worker()

    (event,) = stream(job)
    assert event.type == "failed"
    assert event.error.code == "expired"
    wait_for_celery(stage, job, "FAILURE")


def test_a_job_that_expires_in_the_queue_fails_while_the_worker_is_busy(stage: Stage) -> None:
    stage.server.start()
    stage.worker(step_seconds=SLOWLY, slots=1)
    running = stage.submit(max_tokens=900)
    wait_for_tokens(running)
    job = stage.submit(expires=0.1)

    assert [event.type for event in stream(job)] == ["failed"]
    assert running.status().status == "running"
    running.cancel()


def test_a_job_whose_time_is_over_ends_with_what_it_has(stage: Stage) -> None:
    stage.server.start()
    stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=900, timeout=0.5)

    result = whole(job)
    assert (result.status, result.finish_reason) == ("incomplete", "timeout")
    assert result.text
    assert stage.undisturbed_text(max_tokens=900).startswith(result.text)
    wait_for_celery(stage, job, "SUCCESS")


def test_urgent_jobs_are_served_first_whenever_they_came(stage: Stage) -> None:
    stage.server.start()
    jobs = {priority: stage.submit(priority=priority) for priority in (9, 3, 0, 7, 5)}
    stage.worker(slots=1)
    for job in jobs.values():
        whole(job)

    def started(priority: int) -> float:
        at = jobs[priority].status().started_unix_seconds
        assert at is not None
        return at

    assert sorted(jobs, key=started) == [0, 3, 5, 7, 9]


# the same thing twice


def test_a_job_that_is_submitted_twice_under_its_key_runs_once(stage: Stage) -> None:
    stage.server.start()
    stage.worker(step_seconds=SLOWLY)
    job = stage.submit(idempotency_key="order 1", max_tokens=100)
    wait_for_tokens(job)

    assert stage.submit(idempotency_key="order 1", max_tokens=100).id == job.id
    with pytest.raises(IdempotencyConflict):
        stage.submit(idempotency_key="order 1", max_tokens=99)
    assert whole(job).attempts == 1
    assert stage.submit(idempotency_key="order 1", max_tokens=100).id == job.id


# the engine fails


@pytest.mark.parametrize("code", [1, 2, -1, -3])
def test_jobs_whose_common_decode_call_fails_are_tried_again_one_by_one(stage: Stage, code: int) -> None:
    """Nobody knows whose fault it was; it was nobody's. -3 costs the context, so all cells are computed anew."""
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    fields = [{"prompt": "the other"}, {"prompt": "in the end"}]
    texts = [stage.undisturbed_text(max_tokens=100, **field) for field in fields]
    jobs = [stage.submit(max_tokens=100, **field) for field in fields]
    for job in jobs:
        wait_for_tokens(job, 3)

    worker.fail_next_decode(code)

    assert [whole(job).text for job in jobs] == texts
    assert "as ordered" in worker.log()


def test_a_job_whose_own_decode_call_fails_fails_alone(stage: Stage) -> None:
    stage.server.start()
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=500)
    wait_for_tokens(job, 3)

    worker.fail_next_decode(-3)

    *said, last = stream(job)
    assert said[0].type == "started"
    assert last.type == "failed"
    assert last.error.code == "engine_error"
    wait_for_celery(stage, job, "FAILURE")
    assert whole(stage.submit()).status == "incomplete"
