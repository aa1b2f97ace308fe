"""Sees that a more urgent job waits in Redis while every place here is taken. Runs on the keeper thread.

Celery takes no message beyond its prefetch count. So with all places full, a more urgent job would wait for somebody to
finish, and the engine could not even know that there is something to set a job aside for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import redis

from celery_llama_worker.engine.counters import Counters

logger = logging.getLogger(__name__)


class UrgentWatch:
    """Looks into the queue's more urgent lists, and only when it matters."""

    def __init__(
        self,
        connection: redis.Redis,
        queue_keys: list[str],
        counters: Callable[[], Counters],
        fetch_one_more: Callable[[], None],
    ) -> None:
        """`queue_keys`: the queue's lists, one a priority. `fetch_one_more` raises the prefetch count by one."""
        self._connection = connection
        self._queue_keys = queue_keys
        self._counters = counters
        self._fetch_one_more = fetch_one_more

    def look(self) -> None:
        """Have one job more fetched, if one is more urgent than one of those that run and there is no place for it."""
        counters = self._counters()
        if not counters.waiting:
            return  # a place is free, so Celery takes whoever is next by itself
        more_urgent = self._queue_keys[: counters.least_urgent]
        try:
            if more_urgent and self._connection.exists(*more_urgent):  # an empty list does not exist
                self._fetch_one_more()
        except redis.RedisError as error:
            logger.debug("the queue could not be looked at: %s", error)
