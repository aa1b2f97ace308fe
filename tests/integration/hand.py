"""Plays the worker, one ledger operation at a time."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import redis

from celery_llama.ledger.ledger import Claim, Emission, EmitAnswer, FinishAnswer, Ledger, Worker
from celery_llama.ledger.operation import Operation, T
from celery_llama.ledger.scripts import execute
from celery_llama.protocol.events import encode_event
from celery_llama.protocol.results import Choice, EndStatus, FinishReason, JobError, Result
from celery_llama.protocol.workers import WorkerFacts


@dataclass
class Hand:
    """Does by hand what a worker does, one ledger operation at a time."""

    connection: redis.Redis
    ledger: Ledger

    def do(self, operation: Operation[T]) -> T:
        """Run an operation of the ledger."""
        return execute(self.connection, operation)

    def vouch(self, owner: str = "worker-1", facts: WorkerFacts | None = None) -> None:
        """Show that a worker is alive."""
        self.do(self.ledger.vouch(Worker(owner, owner, facts or WorkerFacts()), 0, [], []))

    def claim(self, job_id: str, owner: str = "worker-1", body: str = "{}", *, alive: bool = True) -> Claim:
        """Take up a job, with or without a lease."""
        if alive:
            self.connection.set(self.ledger.names.lease(owner), 1, ex=1_000)
        return self.do(self.ledger.claim(job_id, owner, body, 5))

    def say(self, job_id: str, *texts: str, attempt: int = 1, first_seq: int = 1) -> EmitAnswer:
        """Write one token event for each text."""
        events = [
            (seq, encode_event(attempt, seq, "token", {"choice": 0, "text": text, "tokens": [seq]}))
            for seq, text in enumerate(texts, first_seq)
        ]
        return self.do(self.ledger.emit([Emission(job_id, attempt, events)]))[0]

    def finish(
        self,
        job_id: str,
        text: str = "",
        *,
        seq: int,
        attempt: int = 1,
        status: EndStatus = "completed",
        reason: FinishReason = "stop",
    ) -> FinishAnswer:
        """End a job with this text, or with an error."""
        if status == "failed":
            error = JobError(code="engine_error", message="it broke")
            event = encode_event(attempt, seq, "failed", {"error": error.model_dump()})
            result = Result(id=job_id, status=status, error=error, attempts=attempt)
        else:
            fields: dict[str, Any] = {"status": status, "finish_reason": [reason]}
            event = encode_event(attempt, seq, "finished", fields)
            result = Result(
                id=job_id, status=status, choices=[Choice(text=text, finish_reason=reason)], attempts=attempt
            )
        return self.do(self.ledger.finish(job_id, attempt, seq, event, result))


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
