"""The Celery configuration that producers, workers and Flower share."""

from __future__ import annotations

import ssl

import pytest

from celery_llama import celery_app
from celery_llama.celery_app import make_app
from celery_llama.settings import Settings


def test_every_key_of_the_broker_belongs_to_the_namespace() -> None:
    options = make_app(Settings(namespace="mine")).conf.broker_transport_options

    keys = [options[name] for name in ("unacked_key", "unacked_index_key", "unacked_mutex_key")]
    assert keys == ["mine:unacked", "mine:unacked_index", "mine:unacked_mutex"]
    assert make_app(Settings(namespace="mine")).conf.task_default_queue == "mine"


def test_a_server_behind_a_unix_socket_is_spelled_as_celery_wants_it() -> None:
    parameters = make_app(Settings(redis_url="unix:///run/redis.sock?db=2")).backend.connparams

    assert (parameters["path"], parameters["db"]) == ("/run/redis.sock", 2)


@pytest.mark.parametrize(
    ("url", "checks"),
    [("rediss://host:1/0", ssl.CERT_REQUIRED), ("rediss://host:1/0?ssl_cert_reqs=none", ssl.CERT_NONE)],
)
def test_certificates_are_checked_unless_the_url_says_otherwise(url: str, checks: ssl.VerifyMode) -> None:
    app = make_app(Settings(redis_url=url))

    assert app.backend.connparams["ssl_cert_reqs"] == checks
    assert app.connection().ssl == {"ssl_cert_reqs": checks}


def test_a_worker_does_not_tire_of_waiting_for_its_broker() -> None:
    assert make_app(Settings()).conf.broker_connection_max_retries is None


def test_the_command_line_of_celery_finds_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_LLAMA_NAMESPACE", "from-the-environment")
    monkeypatch.delitem(vars(celery_app), "app", raising=False)

    assert celery_app.app.conf.task_default_queue == "from-the-environment"
    monkeypatch.delitem(vars(celery_app), "app")
    with pytest.raises(AttributeError):
        _ = celery_app.nothing
