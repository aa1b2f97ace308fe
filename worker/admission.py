"""Admission: claims a job, reads where an earlier attempt stopped, validates, prepares. Runs the admit thread.

Everything that may be wrong with a job is found here, before a slot is taken. Cancelling runs on the same thread, so
that a job is either not claimed yet, and then the claim finds it ended, or already in the engine's inbox.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import redis
from pydantic_core import from_json

from producer.errors import CeleryLlamaError, InvalidJob, JobTooLarge
from producer.jobs import MAX_SEED, GenerateJob, parse_generate_job
from producer.ledger import Claim, Ledger, Operation, execute
from producer.names import check_job_id
from producer.replay import Delivered, delivered, read_events
from producer.results import JobError, Result
from worker.delivery import Delivery
from worker.engine.sequence import Attempt, Sequence
from worker.outcome import DROPPED, HANDED_BACK, Outcome
from worker.publisher import Publisher
from worker.runner import Add, End, EndAll, Runner
from worker.settings import WorkerSettings
from worker.transcript import Transcript, TranscriptChoice

logger = logging.getLogger(__name__)
T = TypeVar("T")

_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Identity:
    """Who works here, as results and leases say it."""

    #: Unique to this process, also when a restarted worker has its predecessor's name.
    owner: str
    model_name: str
    reproducible: bool


class Preparer(Protocol):
    """What admission needs of the model (`engine.prompt`, `engine.sampling`)."""

    def piece(self, token: int) -> bytes:
        """A token's bytes."""

    def prepare(self, job: GenerateJob) -> Any:
        """Template, tokens, lengths, grammar; raises InvalidJob."""

    def sequence(self, job: GenerateJob, prepared: Any, choice: int, delivered: list[int], seed: int) -> Sequence:
        """One choice, ready for the engine, that goes on after the delivered tokens."""


class Ender(Protocol):
    """What admission needs of the pool."""

    def accepted(self, delivery: Delivery) -> None:
        """The job is claimed."""

    def ended(self, delivery: Delivery, outcome: Outcome) -> None:
        """The delivery is over."""


class Admission:
    """Runs the admit thread; its methods may be called from any thread."""

    def __init__(
        self,
        connection: redis.Redis,
        settings: WorkerSettings,
        preparer: Preparer,
        runner: Runner,
        publisher: Publisher,
        mark_started: Callable[[Delivery], None],
        identity: Identity,
    ) -> None:
        """`mark_started` stores Celery's state STARTED."""
        self._connection = connection
        self._settings = settings
        self._ledger: Ledger = settings.ledger
        self._preparer = preparer
        self._runner = runner
        self._publisher = publisher
        self._mark_started = mark_started
        self._identity = identity
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="admit")

    def admit(self, delivery: Delivery, pool: Ender) -> None:
        """Claim the job and bring it into the engine, or end it."""
        self._executor.submit(
            self._guarded, lambda: self._admit(delivery, pool), lambda: pool.ended(delivery, HANDED_BACK)
        )

    def cancel(self, job_id: str) -> None:
        """End the job, wherever it is."""
        self._executor.submit(self._guarded, lambda: self._cancel(job_id), lambda: None)

    def hand_back(self) -> None:
        """Claim nothing more; what waits here, and then what the engine has, goes back."""
        self._stopping.set()
        # Behind the job that is being claimed just now, so that the engine has that one too.
        self._executor.submit(self._runner.send, EndAll("handed_back"))

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._executor.shutdown(wait=True)

    # ---- admit thread

    def _guarded(self, work: Callable[[], None], otherwise: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # a bug of ours; an executor would keep it to itself
            logger.exception("the admit thread has failed")
            otherwise()

    def _admit(self, delivery: Delivery, pool: Ender) -> None:
        job_id = delivery.job_id
        try:
            check_job_id(job_id)
        except InvalidJob as error:  # it cannot have a ledger entry, so Celery alone hears of it
            pool.ended(delivery, Outcome("ended", _refused(job_id, error)))
            return
        body, priority = _wire_job(delivery)
        claim = self._insist(self._ledger.claim(job_id, self._identity.owner, body, priority))
        if claim is None:
            pool.ended(delivery, HANDED_BACK)
        elif claim.outcome == "busy":
            pool.ended(delivery, DROPPED)
        elif claim.outcome == "expired":
            self._insist(self._ledger.expire(job_id))
            self._admit(delivery, pool)  # now it has ended, and the claim says how
        elif claim.outcome == "ended":
            pool.ended(delivery, Outcome("ended", claim.result) if claim.result else DROPPED)
        else:
            self._begin(delivery, claim, pool)

    def _begin(self, delivery: Delivery, claim: Claim, pool: Ender) -> None:
        job_id = delivery.job_id
        transcript = Transcript(
            job_id,
            claim.attempt,
            attempts=claim.attempt - claim.released,
            worker=self._identity.owner,
            model=self._identity.model_name,
            piece=self._preparer.piece,
            queued_seconds=max(0.0, time.time() - claim.created_unix_seconds),
            reproducible=self._identity.reproducible,
        )
        self._publisher.open(transcript, partial(pool.ended, delivery))
        pool.accepted(delivery)
        end = partial(self._publisher.close, job_id, claim.attempt)
        try:
            self._mark_started(delivery)
            so_far = (
                delivered(read_events(self._connection, self._ledger.names, job_id))
                if claim.attempt > 1
                else Delivered()
            )
            _resume(transcript, so_far)
            if claim.cancel_requested:
                end("cancelled")
            elif transcript.attempts > self._settings.max_attempts:
                message = f"{self._settings.max_attempts} workers took the job up and did not survive it"
                end("failed", JobError(code="max_attempts_exceeded", message=message))
            else:
                self._runner.send(Add(self._prepare(delivery, claim, transcript, so_far)))
        except CeleryLlamaError as error:
            end("failed", JobError(code=error.code, message=str(error)))
        except redis.RedisError as error:  # the message stays with the broker, so the job is not lost
            logger.warning("job %s could not be read from Redis (%s); it goes back", job_id, error)
            end("handed_back")
        except Exception as error:
            logger.exception("job %s could not be prepared", job_id)
            end(
                "failed",
                JobError(
                    code="internal_error", message=f"the worker could not prepare the job: {type(error).__name__}"
                ),
            )

    def _prepare(self, delivery: Delivery, claim: Claim, transcript: Transcript, so_far: Delivered) -> Attempt:
        if len(claim.body) > self._settings.max_job_bytes:
            raise JobTooLarge(len(claim.body), self._settings.max_job_bytes)
        job = parse_generate_job(_from_json(claim.body))
        if job.n > self._settings.slots:
            raise InvalidJob(f"n is {job.n}, this worker has {self._settings.slots} slots")
        prepared = self._preparer.prepare(job)
        seed = _seed(delivery.job_id) if job.seed is None else job.seed
        transcript.prompt_tokens = len(prepared.tokens)
        transcript.seed = seed
        transcript.logprobs = job.logprobs
        while len(transcript.choices) < job.n:
            transcript.choices.append(TranscriptChoice())
        sequences = []
        for choice in range(job.n):
            before = so_far.choices[choice].tokens if choice in so_far.choices else []
            # Choices must differ, and a resumed one must not draw its first numbers again.
            mixed = (seed + 1_000_003 * choice + 7_919 * len(before)) % (MAX_SEED + 1)
            sequences.append(self._preparer.sequence(job, prepared, choice, before, mixed))
        limits = (job.timeout, delivery.soft_limit_seconds, delivery.hard_limit_seconds, self._settings.max_job_seconds)
        timeout_seconds = min(limit for limit in limits if limit)
        return Attempt(delivery.job_id, claim.attempt, job.priority, timeout_seconds, sequences)

    def _cancel(self, job_id: str) -> None:
        if self._insist(self._ledger.cancel(job_id)) == "requested":
            self._runner.send(End(job_id, "cancelled"))

    def _insist(self, operation: Operation[T]) -> T | None:
        """Run an operation until the server has answered; None if the worker stops before."""
        while not self._stopping.is_set():
            try:
                return execute(self._connection, operation)
            except redis.RedisError as error:
                logger.warning("Redis does not answer (%s); trying again", error)
                self._stopping.wait(_RETRY_SECONDS)
        return None


def _wire_job(delivery: Delivery) -> tuple[str, int]:
    """The job's body and priority as the message has them; whatever is wrong with them is found after the claim."""
    request = delivery.arguments[2]
    keywords, positional = request.get("kwargs") or {}, request.get("args") or ()
    body = keywords.get("job", positional[0] if positional else None)
    priority = (request.get("delivery_info") or {}).get("priority")
    # In ASCII, whatever it is: only JSON that means something gets past the validation.
    return json.dumps(body, separators=(",", ":")), priority if isinstance(priority, int) else 0


def _from_json(body: bytes) -> object:
    try:
        return from_json(body)
    except ValueError as error:
        raise InvalidJob("the job is not JSON that can be read") from error


def _seed(job_id: str) -> int:
    """A seed for a job that has none: the same in every attempt."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4]) % (MAX_SEED + 1)


def _refused(job_id: str, error: InvalidJob) -> Result:
    return Result(id=job_id, status="failed", error=JobError(code=error.code, message=str(error)))


def _resume(transcript: Transcript, so_far: Delivered) -> None:
    """Let the transcript go on where an earlier attempt stopped."""
    transcript.seq, transcript.started = so_far.last_seq, so_far.started
    transcript.prompt_tokens, transcript.cached_tokens = so_far.prompt_tokens, so_far.cached_tokens
    for index, choice in sorted(so_far.choices.items()):
        while len(transcript.choices) <= index:
            transcript.choices.append(TranscriptChoice())
        transcript.choices[index] = TranscriptChoice([choice.text], len(choice.tokens), list(choice.logprobs))
