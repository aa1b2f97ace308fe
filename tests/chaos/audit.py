"""What must be true once everything is quiet, whatever has happened before. Reads Redis; changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import redis

from celery_llama.celery_app import PRIORITIES
from celery_llama.protocol.events import AnyEvent, Failed, Finished, Token, parse_event
from celery_llama.protocol.names import Names
from celery_llama.protocol.results import Result
from tests.chaos.load import Tally

#: Which of Celery's states goes with which of ours.
CELERY_STATES = {"completed": "SUCCESS", "incomplete": "SUCCESS", "cancelled": "REVOKED", "failed": "FAILURE"}
#: Why a job may fail here: a decode call that was made to fail, or workers that were killed under it.
EXPECTED_ERRORS = {"engine_error", "max_attempts_exceeded"}


@dataclass
class Findings:
    """What an audit has found."""

    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


def queue_keys(names: Names) -> list[str]:
    """The queue's lists, one a priority, as kombu calls them."""
    return [names.namespace, *(f"{names.namespace}\x06\x16{step}" for step in PRIORITIES[1:])]


def left_over(connection: redis.Redis, names: Names) -> dict[str, int]:
    """What is not done yet: jobs, messages, deliveries."""
    counts = {
        "open": connection.zcard(names.open),
        "expiring": connection.zcard(names.expiring),
        "unacked": connection.hlen(names.unacked),
        "unacked index": connection.zcard(names.unacked_index),
        **{f"queue {key[-1]}": connection.llen(key) for key in queue_keys(names)},
    }
    return {what: count for what, count in counts.items() if count}


def audit(connection: redis.Redis, names: Names, tally: Tally) -> Findings:
    """Look at every job and every key."""
    findings = Findings()
    say = findings.violations.append
    for what, count in left_over(connection, names).items():
        say(f"{what} has {count} left")
    job_ids = set(_job_ids(connection, names))
    findings.jobs = len(job_ids)
    for job_id in set(tally.accepted) - job_ids:
        say(f"job {job_id} was accepted and is not in the ledger")
    for job_id in sorted(job_ids):
        for problem in _job_problems(connection, names, job_id, findings):
            say(f"job {job_id}: {problem}")
    for job_id, texts in tally.read.items():
        if texts != _texts(_events(connection, names, job_id)):
            say(f"job {job_id}: a reader saw another text than the stream has")
    findings.violations += [f"key without TTL: {key}" for key in _keys_without_ttl(connection, names)]
    findings.violations += [f"submitted twice: {job_id}" for job_id in tally.wrongly_doubled]
    findings.violations += tally.errors
    return findings


def _job_ids(connection: redis.Redis, names: Names) -> Iterator[str]:
    prefix = f"{names.namespace}:{{"
    for key in connection.scan_iter(f"{prefix}*}}", count=1000):
        yield key.decode().removeprefix(prefix).removesuffix("}")


def _events(connection: redis.Redis, names: Names, job_id: str) -> list[AnyEvent]:
    """The stream as it is, without a cursor that would put it right."""
    entries = cast(list[tuple[bytes, dict[bytes, bytes]]], connection.xrange(names.events(job_id)))
    return [parse_event(fields[b"e"]) for _, fields in entries]


def _job_problems(connection: redis.Redis, names: Names, job_id: str, findings: Findings) -> Iterator[str]:
    status_raw, result_raw = cast(list[bytes | None], connection.hmget(names.job(job_id), ["status", "result"]))
    status = (status_raw or b"").decode()
    findings.statuses[status] += 1
    if status not in CELERY_STATES or result_raw is None:
        yield f"is {status or 'without status'}"
        return
    result = Result.model_validate_json(result_raw)
    findings.attempts[result.attempts] += 1
    if result.status != status:
        yield f"is {status}, its result says {result.status}"
    if result.error is not None:
        findings.errors[result.error.code] += 1
        if result.error.code not in EXPECTED_ERRORS:
            yield f"failed with {result.error.code}: {result.error.message}"
    yield from _stream_problems(_events(connection, names, job_id), result)
    meta = connection.get(f"celery-task-meta-{job_id}")
    state = json.loads(meta)["status"] if meta else "PENDING"
    if state != CELERY_STATES[status]:
        yield f"is {status} ({result.error.code if result.error else 'no error'}), Celery says {state}"


def _stream_problems(events: list[AnyEvent], result: Result) -> Iterator[str]:
    numbers = [event.seq for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its events are numbered {numbers}"
    if [event.terminal for event in events] != [False] * (len(events) - 1) + [True]:
        yield f"its events are {[event.type for event in events]}"
        return
    last = events[-1]
    if isinstance(last, Finished) and (last.status != result.status or result.error is not None):
        yield f"its last event says {last.status}, its result {result.status}"
    if isinstance(last, Failed) and last.error != result.error:
        yield f"its last event says {last.error.code}, its result {result.error}"
    said, texts = _texts(events), {choice.index: choice.text for choice in result.choices}
    if result.choices and any(text != said.get(index, "") for index, text in texts.items()):
        yield f"its events say {said!r}, its result {texts!r}"
    tokens = sum(len(event.tokens) for event in events if isinstance(event, Token))
    if result.choices and tokens != result.usage.completion_tokens:
        yield f"its events have {tokens} tokens, its result {result.usage.completion_tokens}"


def _texts(events: list[AnyEvent]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, Token):
            texts[event.choice] = texts.get(event.choice, "") + event.text
    return texts


def _keys_without_ttl(connection: redis.Redis, names: Names) -> Iterator[str]:
    # kombu's notes of which queue is bound to which exchange: a few, the same for ever.
    bindings = ("_kombu.binding.", "_kombu.binding_permanent.", "_kombu.binding_deadlines")
    for key in connection.scan_iter("*", count=1000):
        if connection.ttl(key) == -1 and not key.decode().startswith(bindings):
            yield key.decode()
