"""The reconciler: finds jobs whose message is gone, and jobs that did not begin in time. Runs on the keeper thread.

Between kombu's BRPOP and its note of what it took, a killed worker loses the message (celery issues 1392 and 4354). The
ledger still has the job; whoever reconciles publishes it again under its own id. One worker does it for as long as it
lives, and as long as there are no more open jobs than messages, it costs a few cheap commands every fifth of a lease.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

import redis

from celery_llama.ledger.scripts import execute
from celery_llama.protocol.kinds import readable_body
from celery_llama_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_PAGE = 200
#: Most jobs that one pass closes or publishes again; the next pass goes on.
_PER_PASS = 1000


class Reconciler:
    """Compares the ledger with the broker."""

    def __init__(
        self,
        connection: redis.Redis,
        settings: WorkerSettings,
        owner: str,
        publish: Callable[[str, Any, int], None],
        queue_keys: list[str],
    ) -> None:
        """`publish` sends a message again: id, body, priority; it raises redis.RedisError.

        `queue_keys`: the queue's lists, one a priority.
        """
        self._connection = connection
        self._ledger = settings.ledger
        self._owner = owner
        self._lease_seconds = settings.lease_seconds
        # By then kombu has restored what a dead worker had.
        self._stale_seconds = settings.lease_seconds + 2 * settings.sweep_seconds
        self._publish = publish
        self._queue_keys = queue_keys
        self._suspects: set[str] = set()

    def tick(self) -> None:
        """One pass, if this is the worker that does it; raises redis.RedisError."""
        if not self._in_charge():
            self._suspects.clear()
            return
        survey = execute(self._connection, self._ledger.survey(self._queue_keys, _PER_PASS))
        for job_id in survey.due:
            execute(self._connection, self._ledger.expire(job_id))
        if survey.open_jobs <= survey.messages:
            self._suspects.clear()
            return
        missing = self._missing()
        # Twice in a row: not merely on its way from one place to another.
        for job_id in islice(missing & self._suspects, _PER_PASS):
            self._publish_again(job_id)
        self._suspects = missing

    def _in_charge(self) -> bool:
        key = self._ledger.names.reconciler
        self._connection.set(key, self._owner, nx=True, ex=self._lease_seconds)
        if self._connection.get(key) != self._owner.encode():
            return False
        self._connection.expire(key, self._lease_seconds)
        return True

    def _missing(self) -> set[str]:
        """Open jobs that nobody has vouched for lately and that have no message."""
        stale_before = self._server_time() - self._stale_seconds
        # All of them: the oldest may have their messages, and wait for long behind more urgent ones.
        candidates = cast(list[bytes], self._connection.zrangebyscore(self._ledger.names.open, "-inf", stale_before))
        if not candidates:
            return set()
        return {job_id.decode() for job_id in candidates} - set(self._messages())

    def _messages(self) -> Iterator[str]:
        """The job ids of all messages, queued and delivered."""
        for key in self._queue_keys:
            start = 0
            while page := cast(list[bytes], self._connection.lrange(key, start, start + _PAGE - 1)):
                yield from (job_id for job_id in map(_job_id, page) if job_id)
                start += _PAGE
        for _tag, raw in self._connection.hscan_iter(self._ledger.names.unacked, count=_PAGE):
            if job_id := _job_id(raw):
                yield job_id

    def _publish_again(self, job_id: str) -> None:
        names = self._ledger.names
        status, body, priority = cast(
            list[bytes | None], self._connection.hmget(names.job(job_id), ["status", "body", "priority"])
        )
        if status is None:  # ended long ago: the entry has expired
            self._connection.zrem(names.open, job_id)
            return
        # Also if it was cancelled meanwhile: whoever gets the message tells Celery.
        logger.warning("job %s had lost its message; it is published again", job_id)
        self._publish(job_id, readable_body(body or b""), int(priority or 0))
        self._connection.zadd(names.open, {job_id: self._server_time()}, xx=True)

    def _server_time(self) -> float:
        seconds, microseconds = self._connection.time()
        return seconds + microseconds / 1e6


def _job_id(raw: bytes) -> str | None:
    """The task id in a message as kombu stores it: in a queue the message itself, among the delivered a triple."""
    try:
        message = json.loads(raw)
        message = message[0] if isinstance(message, list) else message
        return str(message["headers"]["id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None  # not a task; whoever consumes it will say so
