"""Waiting for the Redis server at the start. Main thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import redis

from celery_llama.client.connection import hide_password
from celery_llama.protocol.errors import ServerUnreachable
from celery_llama_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


def wait_for_server(settings: WorkerSettings) -> None:
    """Return when Redis answers; raises ServerUnreachable when `connect_seconds` are over or a login is refused."""
    with redis.Redis.from_url(settings.redis_url, socket_connect_timeout=2, socket_timeout=5) as connection:
        insist(settings, connection.ping)


def insist(settings: WorkerSettings, call: Callable[[], object]) -> None:
    """Repeat a call until Redis has answered it; raises as `wait_for_server` does."""
    deadline = time.monotonic() + settings.connect_seconds
    shown = hide_password(settings.redis_url)
    said = False
    while True:
        try:
            call()
        except redis.RedisError as error:
            if isinstance(error, redis.AuthenticationError) or time.monotonic() >= deadline:
                raise ServerUnreachable(shown, error) from error
            if not said:
                logger.warning("waiting for Redis at %s: %s", shown, error)
            said = True
            time.sleep(_RETRY_SECONDS)
        else:
            return
