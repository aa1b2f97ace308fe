"""Urgent jobs while every place is taken: when the queue is looked at, how many more are fetched, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from celery_llama_worker.bookkeeping.urgent import UrgentWatch
from celery_llama_worker.broker.prefetch import Prefetch
from celery_llama_worker.engine.counters import Counters

KEYS = [f"queue-{priority}" for priority in range(10)]


class Queue:
    """The lists of a queue; notes which were looked at."""

    def __init__(self, **lengths: int) -> None:
        self.lengths = lengths
        self.looked: list[str] = []

    def exists(self, *keys: str) -> int:
        self.looked += keys
        return sum(key.replace("queue-", "p") in self.lengths for key in keys)


class Away:
    """A server that cannot be reached."""

    def exists(self, *keys: str) -> int:
        raise redis.ConnectionError(str(keys))


class Hub:
    """Runs callbacks at once."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()


class Qos:
    """Celery's prefetch count."""

    def __init__(self) -> None:
        self.value = 4

    def increment_eventually(self) -> None:
        self.value += 1

    def decrement_eventually(self) -> None:
        self.value -= 1


def look(queue: Any, *, waiting: int, least_urgent: int) -> int:
    """How many more were fetched."""
    fetched: list[None] = []
    counters = Counters(waiting=waiting, least_urgent=least_urgent)
    UrgentWatch(cast(redis.Redis, queue), KEYS, lambda: counters, lambda: fetched.append(None)).look()
    return len(fetched)


def test_a_job_is_fetched_that_is_more_urgent_than_one_that_runs() -> None:
    assert look(Queue(p2=1), waiting=1, least_urgent=5) == 1


@pytest.mark.parametrize("lengths", [{}, {"p5": 3}, {"p9": 3}])
def test_no_job_is_fetched_that_nobody_would_make_way_for(lengths: dict[str, int]) -> None:
    assert look(Queue(**lengths), waiting=1, least_urgent=5) == 0


def test_the_queue_is_not_looked_at_while_there_are_places() -> None:
    queue = Queue(p0=1)

    assert look(queue, waiting=0, least_urgent=9) == 0
    assert queue.looked == []


def test_a_server_that_is_away_is_looked_at_again_later() -> None:
    assert look(Away(), waiting=1, least_urgent=9) == 0


def test_there_are_no_more_extra_messages_than_slots_and_the_count_is_lowered_as_jobs_end() -> None:
    prefetch, qos = Prefetch(places=4, most_extra=2), Qos()
    prefetch.attach(Hub(), qos)

    for _ in range(5):
        prefetch.fetch_one_more()
    assert qos.value == 6
    prefetch.lower(held=6)
    assert qos.value == 6
    prefetch.lower(held=5)
    assert qos.value == 5
    prefetch.lower(held=3)
    assert qos.value == 4


def test_after_a_reconnect_celerys_own_count_is_in_force() -> None:
    prefetch, before, after = Prefetch(places=4, most_extra=2), Qos(), Qos()
    prefetch.attach(Hub(), before)
    prefetch.fetch_one_more()

    prefetch.attach(Hub(), after)
    prefetch.lower(held=1)

    assert after.value == 4
