"""Embedding jobs in the engine: which texts share a call, what came of them. Pure; on the engine thread.

Stands where the scheduler of generating jobs stands. A text is read whole, in one call, and leaves nothing behind; so a
call is filled with the texts of whatever jobs there are, and there is no slot to keep and no step to resume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celery_llama.protocol.results import FinishReason, JobError
from celery_llama_worker.engine.attempt import Attempts, JobAttempt
from celery_llama_worker.engine.counters import Counters
from celery_llama_worker.engine.outputs import Began, Ended, EndReason, Output, Text, Vector
from celery_llama_worker.engine.pace import UNKNOWN, Pace, Speed
from celery_llama_worker.engine.plan import Call, CallError, CallResult, Limits, Piece, Plan, Values

_FINISH: dict[EndReason, FinishReason] = {"done": "stop", "timeout": "timeout", "cancelled": "cancelled"}


@dataclass(slots=True, eq=False)
class EmbedAttempt(JobAttempt):
    """A claimed embedding job in the engine."""

    #: Each text's tokens; every text fits into a call.
    texts: Sequence[Sequence[int]]
    normalize: bool = True
    dimensions: int | None = None
    #: How many of the texts have their vector.
    done: int = 0
    #: A call with its texts failed, so its texts get calls of their own.
    suspect: bool = False


class EmbedScheduler:
    """Decides and accounts; computes nothing."""

    def __init__(self, limits: Limits, *, step_seconds: float = math.inf, speed: Speed = UNKNOWN) -> None:
        """A call reads more than one text only if it takes no longer than `step_seconds`."""
        self.counters = Counters()
        self._pace = Pace(limits.batch_tokens, limits.cells_per_slot, step_seconds, speed)
        self.counters.longest_call_seconds = self._pace.longest_call_seconds
        self._limits = limits
        self._attempts: Attempts[EmbedAttempt] = Attempts()
        #: Whose text, and which of its texts, each piece of the call is.
        self._placed: dict[int, tuple[EmbedAttempt, int]] = {}

    # ---- jobs come and go

    def add(self, attempt: EmbedAttempt) -> list[Output]:
        """Take in an attempt, in place of an earlier one of the same job."""
        outputs = self.end(attempt.job_id, "dropped")
        self._attempts[attempt.job_id] = attempt
        self._take_stock([])
        return outputs

    def end(self, job_id: str, reason: EndReason, error: JobError | None = None) -> list[Output]:
        """End an attempt. Nothing if it is not here (any more)."""
        attempt = self._attempts.pop(job_id, None)
        if attempt is None:
            return []
        self._take_stock([])
        ended = Ended(job_id, attempt.number, reason, error)
        if reason not in _FINISH:
            return [ended]
        return [Text(job_id, attempt.number, 0, "", (), _FINISH[reason]), ended]

    def expire(self, now: float) -> list[Output]:
        """End the attempts whose time is up (monotonic seconds)."""
        return [output for job_id in self._attempts.late(now) for output in self.end(job_id, "timeout")]

    def tidy(self) -> None:
        """Nothing is held that has to be freed."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._attempts

    @property
    def job_ids(self) -> list[str]:
        """The jobs that are here."""
        return list(self._attempts)

    # ---- one step

    def plan(self, now: float) -> Plan:
        """Fill a call: the most urgent job's texts, then the next one's, as long as there is room."""
        pieces: list[Piece] = []
        room = self._pace.budget_tokens
        self._placed.clear()
        for attempt in sorted(self._attempts.values(), key=lambda attempt: attempt.order):
            if attempt.suspect and pieces:
                continue
            for index in range(attempt.done, len(attempt.texts)):
                tokens = attempt.texts[index]
                if len(tokens) > room or len(pieces) == self._limits.slots:
                    break
                room -= len(tokens)
                self._placed[len(pieces)] = attempt, index
                pieces.append(Piece(len(pieces), 0, tokens, None))
                attempt.deadline = min(attempt.deadline, now + attempt.timeout_seconds)
            if attempt.suspect and pieces:
                break
        self.counters.note_step(bool(pieces), len(pieces), self._limits.slots)
        self._take_stock([attempt for attempt, _ in self._placed.values()])
        return Plan(calls=[pieces] if pieces else [])

    def commit(self, call: Call, result: CallResult) -> list[Output]:
        """Account for the plan's call."""
        if result.error is not None:
            return self._commit_failure(result.error)
        if result.seconds:
            self._pace.note_chunks(sum(len(piece.tokens) for piece in call), result.seconds)
        self.counters.longest_call_seconds = self._pace.longest_call_seconds
        outputs: list[Output] = []
        for piece in call:
            attempt, index = self._placed[piece.slot]
            self.counters.read_tokens += len(piece.tokens)
            if attempt.job_id not in self._attempts:
                continue  # another of its texts has ended it in this very call
            if not attempt.started:
                attempt.started = True
                outputs.append(Began(attempt.job_id, attempt.number, 0))
            values = shape(result.vectors[piece.slot], attempt.dimensions, normalize=attempt.normalize)
            if values is None:
                problem = JobError(code="engine_error", message="the model computed values that are not numbers")
                outputs += self.end(attempt.job_id, "failed", problem)
                continue
            attempt.done = index + 1
            outputs.append(Vector(attempt.job_id, attempt.number, index, values))
            if attempt.done == len(attempt.texts):
                outputs += self.end(attempt.job_id, "done")
        return outputs

    def _commit_failure(self, error: CallError) -> list[Output]:
        """One job's call failed: that job ends. Several jobs' call failed: each is tried in calls of its own."""
        owners = {attempt.job_id: attempt for attempt, _ in self._placed.values()}
        if len(owners) == 1:
            problem = JobError(code="engine_error", message=error.message)
            return [output for job_id in owners for output in self.end(job_id, "failed", problem)]
        for attempt in owners.values():
            attempt.suspect = True
        return []

    def _take_stock(self, running: Sequence[EmbedAttempt]) -> None:
        here = {attempt.job_id for attempt in running}
        self.counters.take_stock(
            active=len(here),
            waiting=len(self._attempts) - len(here),
            least_urgent=max((attempt.priority for attempt in running), default=0),
        )


def shape(vector: Values, dimensions: int | None, *, normalize: bool) -> Values | None:
    """Cut, then scale, as the job wants it; None if there is a value that is no number. A vector of zeros stays one."""
    kept = vector[:dimensions]
    length = float(np.linalg.norm(kept.astype(np.float64)))
    if not math.isfinite(length):
        return None
    return (kept / length).astype(np.float32) if normalize and length else kept
