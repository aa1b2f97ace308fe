"""The ledger: what is true about a job. One hash and one stream per job; the broker message is only a hint.

Owns what goes into the Lua scripts and what comes out of them; scripts.py runs them. Any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from celery_llama.ledger.operation import Argument, Operation, load_script
from celery_llama.protocol.errors import UnreadableData
from celery_llama.protocol.jobs import encode_body
from celery_llama.protocol.names import Names
from celery_llama.protocol.results import Result
from celery_llama.protocol.workers import WorkerFacts


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of a submitted job; `job_id` is the earlier job's where the idempotency key was known."""

    outcome: Literal["created", "existing", "conflict"]
    job_id: str


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, as it stands in the ledger."""

    #: Unique to its process, also when a restarted worker has its predecessor's name.
    owner: str
    name: str
    facts: WorkerFacts


@dataclass(frozen=True, slots=True)
class TaskState:
    """What Celery's result backend keeps for a state of a task."""

    key: str
    value: str
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of an attempt to take up a job."""

    #: `expired`: it had to begin earlier; the caller runs `expire`.
    outcome: Literal["claimed", "ended", "busy", "expired"]
    attempt: int
    #: Attempts that a stopping worker handed back: they do not count against the job.
    released: int
    cancel_requested: bool
    created_unix_seconds: float
    body: bytes
    #: The job's end, where it had ended and Celery does not know yet.
    result: Result | None
    #: Of a busy job: how long its owner still counts as alive if nothing more is heard of it.
    lease_left_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Emission:
    """Events of one attempt, ready to be written: (seq, encoded event) in order."""

    job_id: str
    attempt: int
    events: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a request to run a failed job again."""

    outcome: Literal["queued", "not_failed", "unknown"]
    body: bytes
    priority: int


@dataclass(frozen=True, slots=True)
class Survey:
    """How many jobs are open, how many messages there are for them, and which jobs did not begin in time."""

    open_jobs: int
    messages: int
    due: Sequence[str]


EmitAnswer = Literal["ok", "cancel", "fenced"]
FinishAnswer = Literal["finished", "repeated", "fenced"]
CloseAnswer = Literal["closed", "requested", "ended", "begun", "unknown"]
AcknowledgeAnswer = Literal["acknowledged", "open"]
ReleaseAnswer = Literal["released", "fenced"]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Builds the ledger's operations for one namespace; performs no I/O."""

    names: Names
    result_ttl_seconds: int
    events_ttl_seconds: int
    lease_seconds: int

    def submit(
        self,
        job_id: str,
        body: dict[str, Any],
        *,
        priority: int,
        expires_seconds: float | None,
        idempotency_key: str | None,
    ) -> Operation[Submission]:
        """Enter a job, once."""
        text = encode_body(body)
        keys = [self.names.job(job_id), self.names.open, self.names.expiring]
        if idempotency_key:
            keys.append(self.names.idempotency(idempotency_key))
        digest = hashlib.sha256(text.encode()).hexdigest()
        expires = "" if expires_seconds is None else expires_seconds
        metadata = encode_body(body["metadata"]) if body.get("metadata") else ""
        return Operation(
            load_script("submit"),
            keys,
            [job_id, text, digest, expires, priority, metadata],
            lambda reply: Submission(reply[0].decode(), reply[1].decode()),
        )

    def claim(
        self, job_id: str, owner: str, body: bytes | str, priority: int, started: TaskState | None = None
    ) -> Operation[Claim]:
        """Take up a job; a job that the ledger does not know is entered with this body and priority.

        Every operation made here is one claim, however often it is executed. `started` is stored if the job is ours.
        """
        keys = [self.names.job(job_id), self.names.open, self.names.expiring]
        arguments = [job_id, owner, self.names.lease_prefix, body, priority, self.lease_seconds, uuid4().hex]
        if started is not None:
            keys.append(started.key)
            arguments += [started.value, started.ttl_seconds]
        return Operation(load_script("claim"), keys, arguments, _parse_claim)

    def emit(self, emissions: Sequence[Emission]) -> Operation[list[EmitAnswer]]:
        """Write and publish the events of many jobs in one call; answers in the emissions' order."""
        keys: list[str] = []
        arguments: list[Argument] = []
        for emission in emissions:
            keys += (self.names.job(emission.job_id), self.names.events(emission.job_id))
            arguments += (emission.attempt, len(emission.events))
            for numbered in emission.events:
                arguments += numbered
        return Operation(load_script("emit"), keys, arguments, lambda reply: [answer.decode() for answer in reply])

    def finish(self, job_id: str, attempt: int, seq: int, event: str, result: Result) -> Operation[FinishAnswer]:
        """End a job: terminal event, result and status together."""
        return Operation(
            load_script("finish"),
            self._ending(job_id),
            [
                job_id,
                attempt,
                result.status,
                seq,
                event,
                result.model_dump_json(exclude_none=True),
                self.result_ttl_seconds,
                self.events_ttl_seconds,
            ],
            lambda reply: reply.decode(),
        )

    def acknowledge(self, job_id: str) -> Operation[AcknowledgeAnswer]:
        """Note that Celery knows how the job has ended."""
        return Operation(
            load_script("acknowledge"),
            [self.names.job(job_id), self.names.open],
            [job_id, self.result_ttl_seconds],
            lambda reply: reply.decode(),
        )

    def release(self, job_id: str, attempt: int) -> Operation[ReleaseAnswer]:
        """Hand a job back unfinished."""
        return Operation(
            load_script("release"),
            [self.names.job(job_id), self.names.open],
            [job_id, attempt],
            lambda reply: reply.decode(),
        )

    def cancel(self, job_id: str) -> Operation[CloseAnswer]:
        """End a job that nobody is running, or leave word for the worker that is."""
        return self._close(job_id, "cancel")

    def expire(self, job_id: str) -> Operation[CloseAnswer]:
        """End a job that has not begun in time."""
        return self._close(job_id, "expire")

    def _close(self, job_id: str, why: str) -> Operation[CloseAnswer]:
        names = self.names
        return Operation(
            load_script("close"),
            [*self._ending(job_id), names.open, names.expiring],
            [job_id, why, names.lease_prefix, self.result_ttl_seconds, self.events_ttl_seconds, self.lease_seconds],
            lambda reply: reply.decode(),
        )

    def _ending(self, job_id: str) -> list[str]:
        names = self.names
        return [names.job(job_id), names.events(job_id), names.failed, names.ended(job_id)]

    def vouch(
        self, worker: Worker, now_unix_seconds: float, job_ids: Collection[str], delivery_tags: Collection[str]
    ) -> Operation[None]:
        """Say that a worker is alive and has these jobs, and kombu's messages of these tags, in work."""
        facts = worker.facts.model_dump_json(exclude_none=True)
        return Operation(
            load_script("vouch"),
            [*self._presence(worker), self.names.open, self.names.unacked_index],
            [worker.owner, self.lease_seconds, facts, now_unix_seconds, len(job_ids), *job_ids, *delivery_tags],
            lambda _reply: None,
        )

    def resign(self, worker: Worker) -> Operation[None]:
        """Say that a worker is gone."""
        return Operation(load_script("resign"), self._presence(worker), [worker.owner], lambda _reply: None)

    def _presence(self, worker: Worker) -> list[str]:
        names = self.names
        return [names.lease(worker.owner), names.workers, names.worker_name(worker.name)]

    def survey(self, queue_keys: Sequence[str], limit: int) -> Operation[Survey]:
        """Count open jobs and messages, and name at most `limit` jobs that did not begin in time."""
        return Operation(
            load_script("survey"),
            [self.names.open, self.names.expiring, self.names.unacked, *queue_keys],
            [limit],
            lambda reply: Survey(reply[0], reply[1], [job_id.decode() for job_id in reply[2]]),
        )

    def retry(self, job_id: str) -> Operation[Replay]:
        """Put a failed job back into the queue; the caller publishes it again."""
        names = self.names
        return Operation(
            load_script("retry"),
            [names.job(job_id), names.events(job_id), names.open, names.failed],
            [job_id],
            lambda reply: Replay(reply[0].decode(), reply[1], int(reply[2] or 0)),
        )


def _parse_claim(reply: Sequence[Any]) -> Claim:
    outcome, attempt, released, cancel, created, body, _status, result, left = reply
    try:
        return Claim(
            outcome=outcome.decode(),
            attempt=attempt,
            released=released,
            cancel_requested=bool(cancel),
            created_unix_seconds=float(created),
            body=body,
            result=Result.model_validate_json(result) if result else None,
            lease_left_seconds=float(left),
        )
    except ValueError as error:
        raise UnreadableData("the job's ledger entry") from error
