"""How to reach Redis, and the one place that says so when it cannot be reached. Any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from celery_llama.protocol.errors import ServerUnreachable
from celery_llama.settings import Settings

CONNECTION_ERRORS = (redis.ConnectionError, redis.TimeoutError)
#: A stream that is being read holds one. redis-py stops at 100 of them; how many are too many is the server's to say.
MOST_CONNECTIONS = 100_000
#: Tries after the first, about two seconds of waiting in all.
RETRIES = 4


def connect(settings: Settings) -> redis.Redis:
    """Make a client that connects when it is first used, and retries what may succeed the next time."""
    return redis.Redis.from_url(settings.redis_url, retry=Retry(_backoff(), RETRIES), **_options(settings))


def connect_async(settings: Settings) -> redis.asyncio.Redis:
    """Make a client that connects when it is first used, and retries what may succeed the next time."""
    return redis.asyncio.Redis.from_url(settings.redis_url, retry=AsyncRetry(_backoff(), RETRIES), **_options(settings))


def _backoff() -> ExponentialWithJitterBackoff:
    return ExponentialWithJitterBackoff(base=0.1, cap=1.0)


def _options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {"socket_timeout": settings.redis_timeout_seconds, "max_connections": MOST_CONNECTIONS}
    if not settings.redis_url.startswith("unix://"):
        options |= {"socket_connect_timeout": settings.redis_timeout_seconds, "socket_keepalive": True}
    return options


@contextmanager
def reachable(settings: Settings) -> Iterator[None]:
    """Turn what Redis clients raise when the server cannot be reached into ServerUnreachable."""
    try:
        yield
    except CONNECTION_ERRORS as error:
        raise ServerUnreachable(hide_password(settings.redis_url), error) from error


def hide_password(url: str) -> str:
    """The URL as it may be shown: without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
