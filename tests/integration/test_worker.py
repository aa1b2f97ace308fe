"""A worker process, as services see it: plain Celery and our client, jobs good and bad, events, figures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, states
from celery.exceptions import TaskRevokedError, TimeLimitExceeded
from celery.result import AsyncResult

from celery_llama.client.client import Client
from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.errors import JobFailed
from celery_llama.protocol.names import GENERATE_TASK
from celery_llama.settings import Settings
from tests.scene import Server, Worker, scene
from tests.tiny_model import tiny_model
from tests.waiting import wait_until

SECONDS = 60.0
SLOTS, CELLS = 4, 1500
SECRET = "xylophone"
#: Goes on until it is stopped; at a step a hundredth of a second, a quarter of a minute.
ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "ignore_eos": True, "temperature": 0.0}
SHORT: dict[str, Any] = {**ENDLESS, "max_tokens": 5}


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Settings of the test's services; the server's URL is in them once it has started."""
    return Settings(namespace="worker-test", lease_seconds=3, sweep_seconds=1, max_job_bytes=20_000)


@pytest.fixture(scope="module")
def running(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that says all it can say."""
    folder = tmp_path_factory.mktemp("worker")
    server = Server(folder / "server")
    settings = settings.model_copy(update={"redis_url": server.url})
    options = {"slots": SLOTS, "ctx_per_slot": CELLS, "chunk_tokens": 32, "prefill_tokens": 128, "log_level": "debug"}
    worker = Worker("worker", settings, tiny_model(), folder, options, step_seconds=0.01)
    with scene(server, [worker]):
        server.start()
        worker.start()
        yield worker


@pytest.fixture
def client(running: Worker) -> Iterator[Client]:
    """Our client."""
    with Client(settings=running.settings) as client:
        yield client


@pytest.fixture
def celery(running: Worker) -> Iterator[Celery]:
    """A stranger's Celery, who knows the URL, the queue's name and the task's."""
    url = running.settings.redis_url
    app = Celery("stranger", broker=url, backend=url, set_as_current=False)
    app.conf.task_default_queue = running.settings.namespace
    yield app
    app.close()


def send(app: Celery, job: Any = None, **options: Any) -> AsyncResult:
    """Send a job without our client."""
    result: AsyncResult = app.send_task(GENERATE_TASK, kwargs={"job": SHORT if job is None else job}, **options)
    return result


def first_token(client: Client, job_id: str) -> None:
    """Return when the job has said something."""
    for event in client.job(job_id).stream(timeout=SECONDS):
        if event.type == "token":
            return


def state(result: AsyncResult, wanted: str) -> None:
    """Return when Celery's state is this."""
    wait_until(lambda: result.state == wanted, f"Celery's state is {wanted}", SECONDS)


def figures(app: Celery) -> dict[str, Any]:
    """The pool's part of `inspect stats`."""
    answer = wait_until(lambda: app.control.inspect(timeout=2.0).stats(), "the worker answers")
    (stats,) = answer.values()
    pool: dict[str, Any] = stats["pool"]
    return pool


# jobs


def test_a_job_of_our_client_streams_and_ends(client: Client) -> None:
    job = client.submit(**SHORT)
    events = list(job.stream(timeout=SECONDS))
    result = job.result(timeout=SECONDS)

    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[0].type == "started"
    assert events[-1].type == "finished"
    assert delivered(events).choices[0].text == result.text
    assert (result.status, result.finish_reason, result.usage.completion_tokens) == ("incomplete", "length", 5)
    assert (result.model, result.attempts) == ("tiny", 1)


def test_a_job_of_plain_celery_is_the_same_job(celery: Celery, client: Client) -> None:
    ours = client.submit(**SHORT).result(timeout=SECONDS)
    sent = send(celery)
    value = sent.get(timeout=SECONDS)

    assert sent.state == states.SUCCESS
    assert value["choices"][0]["text"] == ours.text
    assert value["id"] == sent.id
    assert client.job(sent.id).result().text == ours.text
    assert delivered(client.job(sent.id).stream(timeout=SECONDS)).choices[0].text == ours.text


def test_the_body_may_be_the_tasks_first_argument(celery: Celery) -> None:
    sent = celery.send_task(GENERATE_TASK, args=[SHORT])

    assert sent.get(timeout=SECONDS)["status"] == "incomplete"


def test_celery_says_when_a_job_runs_and_a_revoke_ends_it_with_what_it_has(celery: Celery, client: Client) -> None:
    sent = send(celery, ENDLESS)
    state(sent, states.STARTED)
    first_token(client, sent.id)
    sent.revoke(terminate=True)

    with pytest.raises(TaskRevokedError):
        sent.get(timeout=SECONDS)
    assert sent.state == states.REVOKED
    result = client.job(sent.id).result(timeout=SECONDS)
    events = list(client.job(sent.id).stream(timeout=SECONDS))
    assert (result.status, result.finish_reason) == ("cancelled", "cancelled")
    assert result.usage.completion_tokens > 0
    assert delivered(events).choices[0].text == result.text
    assert [event.type for event in events].count("finished") == 1
    wait_until(lambda: figures(celery)["active"] == 0, "the slot is free")


def test_our_clients_cancel_is_a_revoke_for_celery(celery: Celery, client: Client) -> None:
    job = client.submit(**ENDLESS)
    first_token(client, job.id)

    assert job.cancel() == "requested"
    assert job.result(timeout=SECONDS).status == "cancelled"
    state(celery.AsyncResult(job.id), states.REVOKED)


def test_a_job_that_waits_for_a_slot_can_be_revoked(celery: Celery, client: Client) -> None:
    busy = [client.submit(**ENDLESS) for _ in range(SLOTS)]
    for job in busy:
        first_token(client, job.id)
    sent = send(celery, SHORT, priority=9)
    state(sent, states.STARTED)
    sent.revoke(terminate=True)

    state(sent, states.REVOKED)
    result = client.job(sent.id).result(timeout=SECONDS)
    assert (result.status, result.usage.completion_tokens) == ("cancelled", 0)
    for job in busy:
        job.cancel()
        assert job.result(timeout=SECONDS).status == "cancelled"


@pytest.mark.parametrize("soft", [True, False], ids=["soft", "hard"])
def test_celerys_time_limits_end_a_job_with_what_it_has(celery: Celery, client: Client, soft: bool) -> None:
    sent = send(celery, ENDLESS, **{"soft_time_limit" if soft else "time_limit": 1})

    if soft:
        assert sent.get(timeout=SECONDS)["choices"][0]["finish_reason"] == "timeout"
    else:
        with pytest.raises(TimeLimitExceeded):
            sent.get(timeout=SECONDS)
    result = client.job(sent.id).result(timeout=SECONDS)
    assert (result.status, result.finish_reason) == ("incomplete", "timeout")
    assert result.text


def test_a_jobs_own_time_limit_ends_it_with_what_it_has(client: Client) -> None:
    result = client.submit(**ENDLESS, timeout=0.5).result(timeout=SECONDS)

    assert (result.status, result.finish_reason) == ("incomplete", "timeout")
    assert result.usage.completion_tokens > 0


def test_a_message_that_has_expired_is_not_run(celery: Celery, client: Client) -> None:
    sent = send(celery, ENDLESS, expires=-1)
    state(sent, states.REVOKED)

    assert send(celery).get(timeout=SECONDS)["status"] == "incomplete"
    assert figures(celery)["active"] == 0


def test_links_and_chains_run_as_with_any_task(celery: Celery) -> None:
    def job(**options: Any) -> Any:
        return celery.signature(GENERATE_TASK, kwargs={"job": SHORT}, immutable=True, **options)

    linked = job(task_id=f"linked-{uuid4()}")
    send(celery, link=linked)
    assert celery.AsyncResult(linked.id).get(timeout=SECONDS)["status"] == "incomplete"

    last = chain(job(), job(), job(), app=celery).apply_async()
    assert last.get(timeout=SECONDS)["status"] == "incomplete"
    assert last.parent.parent.state == states.SUCCESS


def test_an_error_link_runs_when_a_job_fails(celery: Celery) -> None:
    follow_up = celery.signature(
        GENERATE_TASK, kwargs={"job": SHORT}, immutable=True, task_id=f"after-failure-{uuid4()}"
    )
    send(celery, {"prompt": ""}, link_error=follow_up)

    assert celery.AsyncResult(follow_up.id).get(timeout=SECONDS)["status"] == "incomplete"


# jobs that are refused


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({"prompt": SECRET, "colour": "red"}, "invalid_request"),
        ({}, "invalid_request"),
        ("a text", "invalid_request"),
        (["a", "list"], "invalid_request"),
        (7, "invalid_request"),
        ({"prompt": ""}, "invalid_request"),
        ({"prompt": SECRET, "messages": []}, "invalid_request"),
        ({"prompt": SECRET, "max_tokens": 0}, "invalid_request"),
        ({"prompt": SECRET, "max_tokens": "5"}, "invalid_request"),
        ({"prompt": SECRET, "temperature": -1}, "invalid_request"),
        ({"prompt": SECRET, "n": SLOTS + 1}, "invalid_request"),
        ({"prompt": [1, 10_000_000]}, "invalid_request"),
        ({"prompt": SECRET, "grammar": "root ::= ("}, "invalid_request"),
        ({"prompt": SECRET, "grammar": 'root ::= other "x"'}, "invalid_request"),
        (
            {
                "prompt": SECRET,
                "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}},
            },
            "invalid_request",
        ),
        ({"messages": [{"role": "robot", "content": SECRET}]}, "invalid_request"),
        ({"prompt": [40] * (CELLS + 1)}, "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": f"{SECRET} " * 1000}]}, "context_length_exceeded"),
        ({"prompt": SECRET * 10_000}, "invalid_request"),
        ({"prompt": "half a pair: \ud800"}, "invalid_request"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:40],
)
def test_a_job_that_cannot_be_run_fails_with_a_code_and_one_line(
    celery: Celery, client: Client, job: Any, code: str
) -> None:
    sent = send(celery, job)
    state(sent, states.FAILURE)

    with pytest.raises(JobFailed) as caught:
        client.job(sent.id).result(timeout=SECONDS)
    assert caught.value.result.error is not None
    assert caught.value.result.error.code == code
    assert "\n" not in caught.value.result.error.message
    assert SECRET not in caught.value.result.error.message
    assert code in str(sent.result)
    assert [event.type for event in client.job(sent.id).stream(timeout=SECONDS)][-1] == "failed"


def test_a_message_without_a_job_fails(celery: Celery, client: Client) -> None:
    sent = celery.send_task(GENERATE_TASK)
    state(sent, states.FAILURE)

    with pytest.raises(JobFailed):
        client.job(sent.id).result(timeout=SECONDS)


def test_an_id_that_cannot_be_a_key_fails_in_celery_alone(celery: Celery) -> None:
    sent = send(celery, task_id="no {such} id")

    state(sent, states.FAILURE)


def test_bad_jobs_leave_their_neighbours_alone(celery: Celery, client: Client) -> None:
    job = client.submit(**{**ENDLESS, "max_tokens": 100})
    alone = client.submit(**{**ENDLESS, "max_tokens": 100}).result(timeout=SECONDS)
    for _ in range(10):
        send(celery, {"prompt": ""})

    assert job.result(timeout=SECONDS).text == alone.text


# what others see


@contextmanager
def heard_events(app: Celery) -> Iterator[list[dict[str, Any]]]:
    """What Celery's events say, as Flower hears it."""
    heard: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": heard.append})
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False}, daemon=True)
        thread.start()
        wait_until(lambda: heard, "the worker's heartbeat is heard", SECONDS)
        yield heard
        receiver.should_stop = True
        thread.join(SECONDS)


def kinds_of(heard: list[dict[str, Any]], job_id: str) -> list[str]:
    """The kinds of a job's events, as a worker sent them."""
    return [event["type"] for event in list(heard) if event.get("uuid") == job_id and event["type"] != "task-sent"]


def test_celerys_events_tell_the_story_without_the_texts(celery: Celery, client: Client) -> None:
    with heard_events(celery) as heard:
        good = client.submit(prompt=SECRET, max_tokens=5, ignore_eos=True)
        bad = send(celery, {"prompt": SECRET, "colour": "red"})
        long = client.submit(**ENDLESS)
        first_token(client, long.id)
        long.cancel()
        kinds = {
            good.id: ["task-received", "task-started", "task-succeeded"],
            bad.id: ["task-received", "task-started", "task-failed"],
            long.id: ["task-received", "task-started", "task-revoked"],
        }
        wait_until(lambda: all(len(kinds_of(heard, job_id)) >= 3 for job_id in kinds), "all events are heard", SECONDS)
        assert {job_id: kinds_of(heard, job_id) for job_id in kinds} == kinds

    about = [event for event in heard if event.get("uuid") == good.id]
    received = next(event for event in about if event["type"] == "task-received")
    succeeded = next(event for event in about if event["type"] == "task-succeeded")
    assert received["kwargs"] == f"prompt, {len(SECRET)} characters, max_tokens=5"
    assert succeeded["result"] == "incomplete, 5 tokens"
    assert SECRET not in str([event for event in heard if event["type"] != "task-sent"])


def test_inspect_shows_the_engines_figures(celery: Celery, client: Client) -> None:
    jobs = [client.submit(**ENDLESS) for _ in range(SLOTS)]
    for job in jobs:
        first_token(client, job.id)
    pool = figures(celery)
    for job in jobs:
        job.cancel()
        job.result(timeout=SECONDS)

    assert (pool["slots"], pool["cells"], pool["model"]) == (SLOTS, SLOTS * CELLS, "tiny")
    assert pool["active"] == SLOTS
    assert pool["largest-batch"] == SLOTS
    assert pool["generated-tokens"] > 0
    assert pool["cells-used"] > 0


def test_a_running_job_is_active_and_shows_no_prompt(celery: Celery, client: Client) -> None:
    job = client.submit(prompt=SECRET, ignore_eos=True)
    first_token(client, job.id)
    answer = wait_until(lambda: celery.control.inspect(timeout=2.0).active(), "the worker answers")
    job.cancel()
    job.result(timeout=SECONDS)

    (tasks,) = answer.values()
    (task,) = (task for task in tasks if task["id"] == job.id)
    assert task["time_start"]
    assert (task["args"], task["kwargs"]) == ("()", f"prompt, {len(SECRET)} characters")


def test_neither_prompts_nor_texts_are_in_the_log_at_any_level(client: Client, running: Worker) -> None:
    job = client.submit(prompt=f"The {SECRET} plays", max_tokens=40, ignore_eos=True)
    text = job.result(timeout=SECONDS).text
    chat = client.submit(messages=[{"role": "user", "content": SECRET}], max_tokens=5)
    chat.result(timeout=SECONDS)

    log = running.log()
    assert job.id in log
    assert SECRET not in log
    assert len(text) > 20
    assert text[:20] not in log
    assert "Traceback" not in log


def test_a_worker_is_one_process_with_a_handful_of_threads(client: Client, running: Worker) -> None:
    client.submit(**SHORT).result(timeout=SECONDS)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    threads = Path(f"/proc/{running.pid}/task")
    if not children.exists():
        pytest.skip("only Linux shows a process's children and threads")

    assert children.read_text().split() == []
    assert len(list(threads.iterdir())) < 12
