"""SmolLM2 with many jobs and readers at once: every stream is whole, and what runs together runs as one batch."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery

from celery_llama.celery_app import make_app
from celery_llama.client.client import Client, JobHandle
from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.events import AnyEvent
from celery_llama.protocol.results import Result
from celery_llama.settings import Settings
from tests.scene import Server, Worker, scene
from tests.waiting import wait_until

SLOTS = 32
PATIENCE_SECONDS = 500.0
TORTURE = "naïve 日本語 👩‍👩‍👧‍👦 e\u0301 🏳️‍🌈 ٱلْعَرَبِيَّة 𝄞 end"
QUESTION = "Why is the sky blue?"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker on the demo's model."""
    folder = tmp_path_factory.mktemp("many-jobs")
    server = Server(folder / "server")
    settings = Settings(redis_url=server.url, namespace="many-jobs")
    worker = Worker("worker", settings, "demo", folder, {"slots": SLOTS, "ctx_per_slot": 256, "threads": 2})
    with scene(server, [worker]):
        server.start()
        worker.start()
        yield worker


@pytest.fixture(scope="module")
def client(worker: Worker) -> Iterator[Client]:
    with Client(settings=worker.settings) as client:
        yield client


@pytest.fixture(scope="module")
def celery(worker: Worker) -> Iterator[Celery]:
    app = make_app(worker.settings)
    yield app
    app.close()


def figures(celery: Celery) -> dict[str, int]:
    """What the engine has counted so far."""
    (stats,) = wait_until(lambda: celery.control.inspect(timeout=5.0).stats(), "the worker answers").values()
    pool: dict[str, int] = stats["pool"]
    return pool


def read(job: JobHandle) -> list[AnyEvent]:
    """All events, as they come."""
    return list(job.stream(timeout=PATIENCE_SECONDS))


def check_whole(job: JobHandle, events: list[AnyEvent]) -> Result:
    """The events are numbered without gaps, end once, and say what the result says."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.terminal for event in events] == [False] * (len(events) - 1) + [True]
    result = job.result(timeout=PATIENCE_SECONDS)
    said = delivered(events).choices
    assert [said[choice.index].text if choice.index in said else "" for choice in result.choices] == [
        choice.text for choice in result.choices
    ]
    assert result.usage.completion_tokens == sum(len(choice.tokens) for choice in said.values())
    return result


def kinds_of_jobs() -> Iterator[dict[str, Any]]:
    """Short and long, raw and chat, one text and two, sampled and greedy, in no order."""
    chat = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": QUESTION}]
    kinds: list[dict[str, Any]] = [
        {"prompt": "Once upon a time", "max_tokens": 6},
        {"prompt": "1, 2, 3,", "max_tokens": 16, "temperature": 0.0},
        {"messages": chat, "max_tokens": 12},
        {"messages": chat, "max_tokens": 4, "n": 2},
        {"prompt": "The quick brown fox " * 20, "max_tokens": 3, "temperature": 0.0},
        {"prompt": "A list:\n-", "max_tokens": 20, "stop": ["\n"]},
        {"prompt": "Yes or no?", "grammar": 'root ::= "yes" | "no"'},
        {"prompt": QUESTION, "max_tokens": 5, "logprobs": True, "top_logprobs": 2},
    ]
    randomly = random.Random(1)
    while True:
        yield {**randomly.choice(kinds), "priority": randomly.choice([0, 5, 9])}


def test_two_hundred_jobs_of_all_kinds_end_once_each_and_every_stream_is_whole(client: Client) -> None:
    jobs = [client.submit(**fields) for fields, _ in zip(kinds_of_jobs(), range(200), strict=False)]
    cancelled = jobs[::10]
    with ThreadPoolExecutor(40) as readers:
        streams = readers.map(read, jobs)
        for job in cancelled:
            job.cancel()
        results = [check_whole(job, events) for job, events in zip(jobs, streams, strict=True)]

    assert {result.status for result in results} <= {"completed", "incomplete", "cancelled"}
    kept = [result for job, result in zip(jobs, results, strict=True) if job not in cancelled]
    assert {result.status for result in kept} <= {"completed", "incomplete"}
    assert "cancelled" in {result.status for result in results}


def test_a_hundred_readers_that_come_at_any_time_see_the_same(client: Client) -> None:
    job = client.submit(prompt="Once upon a time", max_tokens=40, ignore_eos=True)
    moments = [threading.Event() for _ in range(20)]

    def read_from(number: int) -> list[AnyEvent]:
        assert moments[number % len(moments)].wait(PATIENCE_SECONDS)
        after = number if number >= 80 else 0  # some have read the beginning already
        return list(job.stream(after=after - 80 if after else 0, timeout=PATIENCE_SECONDS))

    with ThreadPoolExecutor(100) as readers:
        streams = [readers.submit(read_from, number) for number in range(100)]
        whole = []
        for event in job.stream(timeout=PATIENCE_SECONDS):
            whole.append(event)
            moments[min(event.seq, len(moments)) - 1].set()
        for moment in moments:
            moment.set()

    check_whole(job, whole)
    for number, stream in enumerate(streams):
        assert stream.result() == whole[max(0, number - 80) :]


def test_thirty_two_jobs_on_thirty_two_slots_run_as_one_batch(client: Client, celery: Celery) -> None:
    before = figures(celery)
    jobs = [client.submit(prompt=f"{n} times", max_tokens=48, ignore_eos=True) for n in range(SLOTS)]
    results = [job.result(timeout=PATIENCE_SECONDS) for job in jobs]
    after = figures(celery)

    assert sum(result.usage.completion_tokens for result in results) == SLOTS * 48
    assert after["largest-batch"] == SLOTS
    assert after["full-batches"] > before["full-batches"]
    assert after["steps"] - before["steps"] < 2 * 48, "not one after another, nor in two halves"


def test_three_times_as_many_jobs_as_slots_keep_the_slots_busy(client: Client, celery: Celery) -> None:
    before = figures(celery)
    jobs = [client.submit(prompt=f"{n} times", max_tokens=16, ignore_eos=True) for n in range(3 * SLOTS)]
    with ThreadPoolExecutor(32) as readers:
        results = [check_whole(job, events) for job, events in zip(jobs, readers.map(read, jobs), strict=True)]
    after = figures(celery)

    assert sum(result.usage.completion_tokens for result in results) == 3 * SLOTS * 16
    assert after["generated-tokens"] - before["generated-tokens"] == 3 * SLOTS * 16
    assert after["active"] == 0


def test_characters_that_span_tokens_are_never_torn(client: Client) -> None:
    job = client.submit(prompt="Unicode:", grammar=f'root ::= "{TORTURE}"', max_tokens=200)
    events = read(job)
    result = check_whole(job, events)

    assert (result.text, result.finish_reason) == (TORTURE, "stop")
    assert len([event for event in events if event.type == "token"]) > 5
    assert "\ufffd" not in "".join(event.text for event in events)
