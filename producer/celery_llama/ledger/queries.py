"""What readers ask Redis: a job's status, its end, its events, and which jobs failed.

A `Query` is data, as the ledger's `Operation` is; `ask` and `ask_async` run it. Everything that comes in from Redis is
checked here: what cannot be read is an `UnreadableData`. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from pydantic_core import from_json

from celery_llama.protocol.errors import JobNotFound, UnreadableData
from celery_llama.protocol.events import AnyEvent, parse_event
from celery_llama.protocol.names import Names
from celery_llama.protocol.results import END_STATUSES, JobInfo, Result
from celery_llama.protocol.workers import WorkerFacts, read_facts

T = TypeVar("T")

#: A stream entry's id and its event.
Entry = tuple[str, AnyEvent]


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """One reading command and how to read its answer."""

    command: Sequence[str | int]
    parse: Callable[[Any], T]


def ask(connection: redis.Redis, query: Query[T]) -> T:
    """Run a query; raises redis.RedisError, UnreadableData."""
    return query.parse(connection.execute_command(*query.command))  # type: ignore[no-untyped-call]


async def ask_async(connection: redis.asyncio.Redis, query: Query[T]) -> T:
    """Run a query; raises redis.RedisError, UnreadableData."""
    return query.parse(await connection.execute_command(*query.command))  # type: ignore[no-untyped-call]


_INFO_FIELDS = {
    "status": "status",
    "attempts": "attempt",
    "created_unix_seconds": "created",
    "started_unix_seconds": "started",
    "worker": "owner",
    "priority": "priority",
}


def job_info(names: Names, job_id: str) -> Query[JobInfo]:
    """A job's state; raises JobNotFound."""

    def parse(reply: Sequence[bytes | None]) -> JobInfo:
        *plain, cancel, metadata, error = reply
        if plain[0] is None:
            raise JobNotFound(job_id)
        try:
            known = {name: value.decode() for name, value in zip(_INFO_FIELDS, plain, strict=True) if value is not None}
            extra = from_json(metadata) if metadata else {}
            return JobInfo.model_validate(
                {
                    **known,
                    "id": job_id,
                    "cancel_requested": cancel is not None,
                    "metadata": extra if isinstance(extra, dict) else {},
                    "error": from_json(error) if error else None,
                }
            )
        except ValueError as problem:
            raise UnreadableData(f"the ledger entry of job {job_id}") from problem

    return Query(["HMGET", names.job(job_id), *_INFO_FIELDS.values(), "cancel", "metadata", "error"], parse)


def outcome(names: Names, job_id: str) -> Query[Result | None]:
    """A job's result, None while it has not ended; raises JobNotFound."""

    def parse(reply: Sequence[bytes | None]) -> Result | None:
        status, result = reply
        if status is None:
            raise JobNotFound(job_id)
        if status.decode(errors="replace") not in END_STATUSES:
            return None
        try:
            return Result.model_validate_json(result or b"")
        except ValueError as problem:
            raise UnreadableData(f"the result of job {job_id}") from problem

    return Query(["HMGET", names.job(job_id), "status", "result"], parse)


def has_ended(names: Names, job_id: str) -> Query[bool]:
    """Whether a job has ended; raises JobNotFound."""

    def parse(status: bytes | None) -> bool:
        if status is None:
            raise JobNotFound(job_id)
        return status.decode(errors="replace") in END_STATUSES

    return Query(["HGET", names.job(job_id), "status"], parse)


def events(names: Names, job_id: str, start: str, count: int) -> Query[list[Entry]]:
    """A page of a job's stream: at most `count` entries from `start`, an XRANGE start."""

    def parse(reply: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> list[Entry]:
        try:
            return [(entry_id.decode(), parse_event(fields[b"e"], job_id)) for entry_id, fields in reply]
        except (ValueError, KeyError, TypeError) as problem:  # TypeError: fields of an entry that was deleted
            raise UnreadableData(f"the events of job {job_id}") from problem

    return Query(["XRANGE", names.events(job_id), start, "+", "COUNT", count], parse)


def worker_owners(names: Names) -> Query[list[str]]:
    """The workers of the namespace, the latest to vouch first; some may be dead: `living` tells."""
    return Query(["ZREVRANGE", names.workers, 0, -1], lambda reply: [owner.decode() for owner in reply])


def living(names: Names, owners: Sequence[str]) -> Query[dict[str, WorkerFacts]]:
    """Those of these workers, at least one, that are alive or were within the last lease, and what they say."""

    def parse(leases: Sequence[bytes | None]) -> dict[str, WorkerFacts]:
        known = zip(owners, leases, strict=True)
        return {owner: read_facts(lease) for owner, lease in known if lease is not None}

    return Query(["MGET", *map(names.lease, owners)], parse)


def last_seq(names: Names, job_id: str) -> Query[int | None]:
    """The number of a job's latest event; None if its stream has none."""

    def parse(reply: Sequence[tuple[bytes, object]]) -> int | None:
        return int(reply[0][0].partition(b"-")[2]) if reply else None

    return Query(["XREVRANGE", names.events(job_id), "+", "-", "COUNT", 1], parse)


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """A page of the open jobs; `cursor` is where the next one begins, 0 after the last."""

    cursor: int
    job_ids: Sequence[str]


def open_jobs(names: Names, cursor: int, count: int) -> Query[OpenJobs]:
    """A page of about `count` jobs that have not ended, or of whose end Celery has not been told, in no order.

    Begins with cursor 0. Who is there from the first page to the last is on one of them, perhaps on two.
    """

    def parse(reply: tuple[bytes | int, Sequence[bytes | tuple[bytes, float]]]) -> OpenJobs:
        following, members = reply
        ids = [member[0] if isinstance(member, tuple) else member for member in members]
        return OpenJobs(int(following), [job_id.decode(errors="replace") for job_id in dict.fromkeys(ids)])

    return Query(["ZSCAN", names.open, cursor, "COUNT", count], parse)


def failed_jobs(names: Names, limit: int) -> Query[list[str]]:
    """The ids of the jobs that failed, the latest first."""
    return Query(
        ["ZREVRANGE", names.failed, 0, limit - 1], lambda reply: [member.decode(errors="replace") for member in reply]
    )
