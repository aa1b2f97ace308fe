"""Waiting for the Redis server at the start. Main thread."""

from __future__ import annotations

import logging
import time

import redis

from producer.connection import hide_password
from producer.errors import ServerUnreachable
from worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


def wait_for_server(settings: WorkerSettings) -> None:
    """Return when Redis answers; raises ServerUnreachable when `connect_seconds` are over or a login is refused."""
    deadline = time.monotonic() + settings.connect_seconds
    shown = hide_password(settings.redis_url)
    said = False
    with redis.Redis.from_url(settings.redis_url, socket_connect_timeout=2, socket_timeout=5) as connection:
        while True:
            try:
                connection.ping()
            except redis.RedisError as error:
                if isinstance(error, redis.AuthenticationError) or time.monotonic() >= deadline:
                    raise ServerUnreachable(shown, error) from error
                if not said:
                    logger.warning("waiting for Redis at %s: %s", shown, error)
                said = True
                time.sleep(_RETRY_SECONDS)
            else:
                return
