"""The keeper's lease, when the server goes away while the model is being loaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_llama.ledger.ledger import Worker
from celery_llama.protocol.errors import ServerUnreachable
from celery_llama.protocol.workers import WorkerFacts
from celery_llama_worker.bookkeeping.keeper import Keeper
from celery_llama_worker.settings import WorkerSettings
from tests.scene import Server, scene
from tests.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    with scene(server, []):
        yield server


@contextmanager
def keeper(server: Server, connect_seconds: float) -> Iterator[Keeper]:
    settings = WorkerSettings(redis_url=server.url, namespace="keeper", connect_seconds=connect_seconds)
    idle = cast(
        Any,
        SimpleNamespace(
            progress_at=0.0, longest_call_seconds=0.0, send=lambda _: None, tick=lambda: None, look=lambda: None
        ),
    )

    def crash(error: BaseException) -> None:
        pytest.fail(str(error))

    me = Worker("me", "name", WorkerFacts())
    with server.connection() as connection:
        yield Keeper(connection, settings, me, idle, idle, idle, lambda: ([], []), crash)


def test_a_starting_worker_waits_for_its_lease(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with keeper(server, connect_seconds=60.0) as waiting, server.connection() as connection:
        starting = threading.Thread(target=waiting.start)
        starting.start()
        wait_until(lambda: "waiting for Redis" in caplog.text, "the keeper waits")

        server.start()
        starting.join(60)

        assert connection.exists("keeper:worker:me")
        waiting.stop()
        assert not connection.exists("keeper:worker:me")


def test_a_worker_that_gets_no_lease_says_that_the_server_cannot_be_reached(server: Server) -> None:
    with keeper(server, connect_seconds=0.0) as waiting, pytest.raises(ServerUnreachable):
        waiting.start()
