"""A server, workers and a client for one end-to-end test, and what such tests look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from celery import Celery

from celery_llama.celery_app import make_app
from celery_llama.client.client import Client, JobHandle
from celery_llama.protocol.events import AnyEvent, Token
from celery_llama.protocol.results import JobStatus, Result
from celery_llama.settings import Settings
from tests.chaos.audit import left_over
from tests.scene import ROOT, Server, Worker
from tests.tiny_model import tiny_model
from tests.waiting import wait_until

#: Short, so that nobody waits long for a lease to lapse.
LEASE_SECONDS, SWEEP_SECONDS, TIMEOUT_SECONDS = 3, 1, 1.0
#: A test's patience; never how long something takes.
PATIENCE_SECONDS = 60.0


class Stage:
    """Everything for one test. Nothing runs until it is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server(folder / "server")
        self.settings = Settings(
            redis_url=self.server.url,
            namespace="stage",
            lease_seconds=LEASE_SECONDS,
            sweep_seconds=SWEEP_SECONDS,
            redis_timeout_seconds=TIMEOUT_SECONDS,
        )
        self.workers: list[Worker] = []
        self._numbers = count(1)

    def worker(self, *, step_seconds: float = 0.0, **options: object) -> Worker:
        """Start a worker on the tiny model; returns at once."""
        defaults: dict[str, object] = {"slots": 4, "lookahead": 0, "ctx_per_slot": 1024, "drain_seconds": 1}
        name = f"worker-{next(self._numbers)}"
        worker = Worker(name, self.settings, tiny_model(), self.folder, defaults | options, step_seconds)
        self.workers.append(worker)
        worker.start()
        return worker

    @cached_property
    def client(self) -> Client:
        """A client, once there is a server."""
        return Client(settings=self.settings)

    @cached_property
    def app(self) -> Celery:
        """Celery, as another service uses it."""
        return make_app(self.settings)

    def close(self) -> None:
        """Close what was opened."""
        for opened in (self.__dict__.get("client"), self.__dict__.get("app")):
            if opened is not None:
                opened.close()

    def submit(self, **fields: Any) -> JobHandle:
        """A job whose text depends on nothing but itself, of 20 tokens unless told otherwise."""
        defaults: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}
        if "messages" not in fields:
            defaults["prompt"] = "the other hand"
        return self.client.submit(**(defaults | fields))

    def undisturbed_text(self, **fields: Any) -> str:
        """What such a job says when nothing happens to it."""
        return self.submit(**fields).result(PATIENCE_SECONDS).text

    def left_over(self) -> dict[str, int]:
        """Jobs and messages that are not done yet."""
        with self.server.connection() as connection:
            return left_over(connection, self.settings.names)

    def cli(self, *arguments: str) -> list[Any]:
        """Run `celery-llama --json`; returns the objects that it prints."""
        command = [
            sys.executable,
            "-m",
            "celery_llama.cli",
            "--redis-url",
            self.server.url,
            "--namespace",
            "stage",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, *arguments, "--json"], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
        )
        return [json.loads(line) for line in done.stdout.splitlines()]


def stream(job: JobHandle) -> Iterator[AnyEvent]:
    """The job's events as they come, for as long as a test waits."""
    return job.stream(timeout=PATIENCE_SECONDS)


def wait_for_tokens(job: JobHandle, number: int = 1) -> None:
    """Return when so many tokens have been said."""
    said = 0
    for event in stream(job):
        if isinstance(event, Token):
            said += len(event.tokens)
        if said >= number:
            return
    raise AssertionError(f"the job has ended with {said} tokens")


def wait_for_status(job: JobHandle, status: JobStatus) -> None:
    """Return when the job is in this state."""
    wait_until(lambda: job.status().status == status, f"job is {status}", PATIENCE_SECONDS)


def wait_for_log(worker: Worker, words: str) -> None:
    """Return when the worker has said this."""
    wait_until(lambda: words in worker.log(), f"{worker.name} says {words!r}", PATIENCE_SECONDS)


def wait_for_celery(stage: Stage, job: JobHandle, state: str) -> None:
    """Return when Celery says this of the job, which is a moment after the terminal event."""
    wait_until(lambda: stage.app.AsyncResult(job.id).state == state, f"Celery says {state}", PATIENCE_SECONDS)


def whole(job: JobHandle) -> Result:
    """The job's result, once it has ended and its stream has been found to be whole and to say the same."""
    events = list(stream(job))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.terminal for event in events] == [False] * (len(events) - 1) + [True]
    assert sum(event.type == "started" for event in events) <= 1
    result = job.result(PATIENCE_SECONDS)
    assert "".join(event.text for event in events if isinstance(event, Token) and event.choice == 0) == result.text
    return result
