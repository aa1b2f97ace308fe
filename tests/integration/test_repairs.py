"""What the worker puts right in kombu and Celery, on a real server that goes away and comes back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.backends import BACKEND_ALIASES
from celery.worker import state
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_llama.celery_app import make_app
from celery_llama.settings import Settings
from celery_llama_worker.broker import backend
from tests.scene import Server, scene


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    with scene(server, []):
        server.start()
        yield server


@pytest.fixture
def app(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """A worker's application."""
    for name in ("redis", "rediss"):
        monkeypatch.setitem(BACKEND_ALIASES, name, BACKEND_ALIASES[name])
    app = make_app(Settings(redis_url=server.url, redis_timeout_seconds=1.0))
    backend.install(app)
    yield app
    app.close()


@pytest.fixture
def channel(server: Server) -> Iterator[Any]:
    """A channel that may hold one message, with two waiting."""
    with Connection(server.url, transport="celery_llama_worker.broker.transport:Transport") as connection:
        queue = connection.SimpleQueue("queue")
        for number in range(2):
            queue.put(number)
        channel = connection.channel()
        channel.basic_qos(0, 1, False)
        yield channel


def hold(channel: Any) -> str:
    message = channel.basic_get("queue")
    channel.qos.append(message, message.delivery_tag)
    assert not channel.qos.can_consume()
    return str(message.delivery_tag)


@pytest.mark.parametrize("method", ["basic_ack", "basic_reject"])
def test_a_message_that_cannot_be_acknowledged_frees_its_place(server: Server, channel: Any, method: str) -> None:
    tag = hold(channel)
    server.stop()

    with pytest.raises((redis.ConnectionError, OperationalError)):
        getattr(channel, method)(tag)

    assert channel.qos.can_consume()


def test_a_message_that_is_let_go_frees_its_place_and_comes_back_later(server: Server, channel: Any) -> None:
    tag = hold(channel)

    channel.qos.let_go(tag)

    assert channel.qos.can_consume()
    with server.connection() as connection:
        assert connection.hexists("unacked", tag)
    channel.qos.restore_by_tag(tag)  # what kombu does when its time is over
    assert {channel.basic_get("queue").payload for _ in range(2)} == {0, 1}


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's call
def test_a_result_is_stored_once_redis_is_back(server: Server, app: Celery) -> None:
    server.stop()
    thread = threading.Thread(target=app.backend.store_result, args=("j", {"text": "x"}, "SUCCESS"))
    thread.start()
    server.start()
    thread.join(30)

    with server.connection() as connection:
        meta = connection.get("celery-task-meta-j")
        assert meta is not None
        assert json.loads(meta)["status"] == "SUCCESS"


def test_a_worker_that_stops_does_not_wait_for_redis(
    server: Server, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stop()
    monkeypatch.setattr(state, "should_stop", 0)

    with pytest.raises(redis.ConnectionError):
        app.backend.store_result("j", {"text": "x"}, "SUCCESS")


def test_a_claim_stores_that_the_task_has_started_as_celery_would(server: Server, app: Celery) -> None:
    state = app.backend.started("j", {"pid": 1, "hostname": "here"})
    with server.connection() as connection:
        connection.set(state.key, state.value, ex=state.ttl_seconds)

    result = app.AsyncResult("j")
    assert (result.state, result.info) == ("STARTED", {"pid": 1, "hostname": "here"})
    assert state.ttl_seconds == app.conf.result_expires
