"""A worker that is told to end, politely or not, with jobs in hand; what it leaves, another worker goes on with."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stage import Stage, stream, wait_for_celery, wait_for_log, wait_for_tokens, whole
from tests.scene import scene

#: Makes a job of a few hundred tokens last a few seconds.
SLOWLY = 0.01
FOREVER = 100_000


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with scene(stage.server, stage.workers):
        stage.server.start()
        yield stage
        stage.close()


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)], ids=["TERM", "INT"])
def test_an_idle_worker_ends_at_once_and_gives_up_its_lease(
    stage: Stage, number: signal.Signals, exit_code: int
) -> None:
    worker = stage.worker()
    stage.undisturbed_text()
    with stage.server.connection() as connection:
        pattern = f"{stage.settings.names.lease_prefix}*"
        assert connection.keys(pattern)
        worker.signal(number)

        assert worker.wait() == exit_code
        assert connection.keys(pattern) == []
    assert "Traceback" not in worker.log()


def test_jobs_that_fit_into_the_drain_time_finish(stage: Stage) -> None:
    worker = stage.worker(step_seconds=SLOWLY, drain_seconds=FOREVER)
    jobs = [stage.submit(max_tokens=150) for _ in range(3)]
    for job in jobs:
        wait_for_tokens(job)

    assert worker.stop() == 0

    for job in jobs:
        assert [event.attempt for event in stream(job)][-1] == 1
        assert whole(job).finish_reason == "length"
        wait_for_celery(stage, job, "SUCCESS")
    assert stage.left_over() == dict.fromkeys(stage.left_over(), 0)


def test_a_stopping_worker_takes_no_more_jobs(stage: Stage) -> None:
    worker = stage.worker(step_seconds=SLOWLY, drain_seconds=FOREVER)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job)
    worker.signal(signal.SIGTERM)
    wait_for_log(worker, "stopping; 1 job(s)")
    late = stage.submit()

    assert worker.wait() == 0
    assert whole(job).finish_reason == "length"
    assert late.status().status == "queued"
    stage.worker()
    assert whole(late).attempts == 1


def test_jobs_that_do_not_fit_go_on_elsewhere_and_the_attempt_does_not_count(stage: Stage) -> None:
    worker = stage.worker(step_seconds=SLOWLY, drain_seconds=0)
    jobs = [stage.submit(max_tokens=300) for _ in range(6)]  # two of them wait for a slot
    for job in jobs[:4]:
        wait_for_tokens(job, 10)
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert {job.status().status for job in jobs} == {"queued"}
    stage.worker()
    for job in jobs:
        result = whole(job)
        assert (result.usage.completion_tokens, result.attempts) == (300, 1)
    assert [event.attempt for event in stream(jobs[0])][-1] == 2


def test_another_signal_cuts_the_drain_short(stage: Stage) -> None:
    worker = stage.worker(step_seconds=SLOWLY, drain_seconds=FOREVER, ctx_per_slot=8192)
    job = stage.submit(max_tokens=8000)
    wait_for_tokens(job, 10)
    worker.signal(signal.SIGTERM)
    wait_for_log(worker, "stopping; 1 job(s)")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert "stopped; 1 job(s) handed back" in worker.log()
    assert job.status().status == "queued"
    stage.worker(ctx_per_slot=8192)
    assert next(event for event in stream(job) if event.attempt == 2).type == "token"
    assert job.cancel() == "requested"
    assert whole(job).finish_reason == "cancelled"


def test_a_cold_shutdown_hands_everything_back_at_once(stage: Stage) -> None:
    worker = stage.worker(step_seconds=SLOWLY, drain_seconds=FOREVER)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)
    worker.signal(signal.SIGQUIT)
    worker.wait()

    assert "stopped; 1 job(s) handed back" in worker.log()
    assert job.status().status == "queued"
    stage.worker()
    result = whole(job)
    assert (result.usage.completion_tokens, result.attempts) == (300, 1)
    wait_for_celery(stage, job, "SUCCESS")


@pytest.mark.parametrize("kills", [1, 2])
def test_a_killed_workers_jobs_go_on_where_they_were(stage: Stage, kills: int) -> None:
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300)
    for attempt in range(1, kills + 1):
        next(event for event in stream(job) if event.attempt == attempt and event.type == "token")
        worker.kill()
        worker = stage.worker(step_seconds=SLOWLY)

    result = whole(job)
    assert (result.usage.completion_tokens, result.attempts) == (300, kills + 1)
    wait_for_celery(stage, job, "SUCCESS")


def test_every_choice_of_a_killed_workers_job_goes_on(stage: Stage) -> None:
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=200, n=3, temperature=1.0, seed=5, logprobs=True)
    wait_for_tokens(job, 60)
    worker.kill()
    stage.worker()
    result = whole(job)

    assert [len(choice.logprobs or ()) for choice in result.choices] == [200] * 3
    assert result.usage.completion_tokens == 600
    for choice in result.choices:
        assert choice.finish_reason == "length"
        said = [event.text for event in stream(job) if event.type == "token" and event.choice == choice.index]
        assert "".join(said) == choice.text


def test_a_worker_that_comes_back_under_its_name_takes_its_own_job_up_again(stage: Stage) -> None:
    worker = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 10)
    worker.kill()
    worker.start()

    assert whole(job).usage.completion_tokens == 300
