"""Reads a job's stream from its beginning, page by page. Any thread."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from celery_llama.ledger.cursor import EventCursor
from celery_llama.ledger.queries import ask, events
from celery_llama.protocol.events import AnyEvent
from celery_llama.protocol.names import Names

#: Entries fetched in one call.
PAGE_ENTRIES = 1000


def read_events(connection: redis.Redis, names: Names, job_id: str, *, after: int = 0) -> Iterator[AnyEvent]:
    """Yield what a job's stream holds now, past sequence number `after`; raises redis.RedisError, UnreadableData."""
    cursor, start = EventCursor(after), "-"
    while True:
        page = ask(connection, events(names, job_id, start, PAGE_ENTRIES))
        yield from (event for _, event in page if cursor.feed(event))
        if len(page) < PAGE_ENTRIES:
            return
        start = f"({page[-1][0]}"
