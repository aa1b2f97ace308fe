"""Admission: claims a job, reads where an earlier attempt stopped, validates, prepares. Runs the admit thread.

Everything that may be wrong with a job is found here, before a slot is taken. Cancelling runs on the same thread, so
that a job is either not claimed yet, and then the claim finds it ended, or already in the engine's inbox.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import redis
from pydantic_core import from_json

from celery_llama.ledger.ledger import Claim, TaskState
from celery_llama.ledger.operation import Operation
from celery_llama.ledger.replay import read_events
from celery_llama.ledger.scripts import execute
from celery_llama.protocol.delivered import Delivered, DeliveredChoice, delivered
from celery_llama.protocol.errors import CeleryLlamaError, InvalidJob, JobTooLarge
from celery_llama.protocol.kinds import Job, parse_job
from celery_llama.protocol.names import check_job_id
from celery_llama.protocol.results import JobError, Result
from celery_llama.protocol.workers import WorkerFacts
from celery_llama_worker.bookkeeping.fitting import adapters_of, may_go_on_here
from celery_llama_worker.bookkeeping.outcome import DROPPED, HANDED_BACK, Outcome
from celery_llama_worker.bookkeeping.postponed import Postponed
from celery_llama_worker.bookkeeping.publisher import Publisher
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.attempt import A, A_co
from celery_llama_worker.engine.prepared import PreparedJob
from celery_llama_worker.runner import Add, End, EndAll, Runner
from celery_llama_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

_RETRY_SECONDS = 0.5
#: How long a job that another worker must go on with is kept from the queue.
_OTHERS_TURN_SECONDS = 1.0
#: An owner vouches for itself every fifth of its lease; with a smaller part left than this it is late, and may be dead.
_ON_TIME = 0.6


@dataclass(frozen=True, slots=True)
class Identity:
    """Who works here, as results and leases say it."""

    #: Unique to this process, also when a restarted worker has its predecessor's name.
    owner: str
    facts: WorkerFacts


class Preparer(Protocol[A_co]):
    """What admission needs of the model (`engine.preparer`, `engine.embed_preparer`)."""

    def piece(self, token: int) -> bytes:
        """A token's bytes."""

    def prepare(
        self,
        job_id: str,
        number: int,
        job: Job,
        delivered: Mapping[int, DeliveredChoice],
        limit_seconds: float | None,
    ) -> PreparedJob[A_co]:
        """Make an attempt; raises CeleryLlamaError."""


class JobMessage(Protocol):
    """What admission needs of a message that this worker holds (`broker.delivery.Delivery`)."""

    job_id: str
    #: Whether the job was cancelled before its message came.
    revoked: bool
    #: Whether the ledger has given the job to this worker; admission sets it.
    claimed: bool

    @property
    def task(self) -> str:
        """The task's name."""

    @property
    def wire_job(self) -> tuple[str, int]:
        """The job's body and priority as the message has them, for a job that the ledger does not know."""

    @property
    def limit_seconds(self) -> float | None:
        """How long the job may run, as far as the message says."""


M_contra = TypeVar("M_contra", bound=JobMessage, contravariant=True)
M = TypeVar("M", bound=JobMessage)


class Holder(Protocol[M_contra]):
    """What admission needs of whoever holds the message (`broker.pool.EnginePool`)."""

    def accepted(self, delivery: M_contra) -> None:
        """The job is claimed."""

    def ended(self, delivery: M_contra, outcome: Outcome) -> None:
        """The delivery is over."""


class Admission(Generic[A]):
    """Runs the admit thread; its methods may be called from any thread."""

    def __init__(
        self,
        connection: redis.Redis,
        settings: WorkerSettings,
        preparer: Preparer[A],
        runner: Runner[A],
        publisher: Publisher,
        started: Callable[[str], TaskState],
        identity: Identity,
    ) -> None:
        """`started` is what Celery is to say of a job that has been claimed."""
        self._connection = connection
        self._settings = settings
        self._ledger = settings.ledger
        self._preparer = preparer
        self._runner = runner
        self._publisher = publisher
        self._started = started
        self._identity = identity
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="admit")
        self._postponed = Postponed(self._submit)

    def admit(self, delivery: M, pool: Holder[M]) -> None:
        """Claim the job and bring it into the engine, or end it."""
        self._submit(lambda: self._admit(delivery, pool), lambda: pool.ended(delivery, DROPPED))

    def cancel(self, job_id: str) -> None:
        """End the job, wherever it is."""
        self._submit(lambda: self._cancel(job_id))

    def acknowledge(self, job_id: str) -> None:
        """Note that Celery knows how the job has ended."""
        self._submit(lambda: self._acknowledge(job_id))

    def hand_back(self) -> None:
        """Claim nothing more; what waits here, and then what the engine has, goes back."""
        self._stopping.set()
        self._submit(self._postponed.flush)
        self._submit(lambda: self._runner.send(EndAll("handed_back")))  # and the job that is being claimed just now

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._submit(self._postponed.flush)
        self._executor.shutdown(wait=True)

    # ---- admit thread

    def _submit(self, work: Callable[[], None], otherwise: Callable[[], None] = lambda: None) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception:  # a bug of ours; an executor would keep it to itself
                logger.exception("the admit thread has failed")
                otherwise()

        self._executor.submit(guarded)

    def _admit(self, delivery: M, pool: Holder[M]) -> None:
        job_id = delivery.job_id
        try:
            check_job_id(job_id)
        except InvalidJob as error:  # it cannot have a ledger entry, so Celery alone hears of it
            refused = Result(id=job_id, status="failed", error=JobError(code=error.code, message=str(error)))
            pool.ended(delivery, Outcome("ended", refused))
            return
        body, priority = delivery.wire_job
        claim = self._insist(self._ledger.claim(job_id, self._identity.owner, body, priority, self._started(job_id)))
        if claim is None:
            pool.ended(delivery, HANDED_BACK)
        elif claim.outcome == "busy":
            self._drop_or_wait(delivery, claim, pool)
        elif claim.outcome == "expired":
            self._insist(self._ledger.expire(job_id))
            self._admit(delivery, pool)  # now it has ended, and the claim says how
        elif claim.outcome == "ended":
            pool.ended(delivery, Outcome("ended", claim.result))
        else:
            self._begin(delivery, claim, pool)

    def _drop_or_wait(self, delivery: M, claim: Claim, pool: Holder[M]) -> None:
        """Let go of a live worker's job. If that worker is dead, wait until it is certain, and take the job."""
        if claim.lease_left_seconds > _ON_TIME * self._settings.lease_seconds:
            pool.ended(delivery, DROPPED)
        else:
            self._postponed.put(claim.lease_left_seconds, lambda: self.admit(delivery, pool))

    def _begin(self, delivery: M, claim: Claim, pool: Holder[M]) -> None:
        job_id = delivery.job_id
        transcript = Transcript(
            job_id,
            claim.attempt,
            attempts=claim.attempt - claim.released,
            worker=self._identity.owner,
            model=self._identity.facts.model,
            piece=self._preparer.piece,
            queued_seconds=max(0.0, time.time() - claim.created_unix_seconds),
        )
        delivery.claimed = True
        self._publisher.open(transcript, partial(pool.ended, delivery))
        pool.accepted(delivery)
        end = partial(self._publisher.close, job_id, claim.attempt)
        try:
            so_far = self._resume_point(job_id, claim)
            transcript.resume(so_far)
            if claim.cancel_requested or delivery.revoked:
                end("cancelled")
            elif transcript.attempts > (most := self._settings.max_attempts):
                transcript.attempts = most  # this one only says so
                why = f"{most} workers took the job up and did not survive it"
                end("failed", JobError(code="max_attempts_exceeded", message=why))
            else:
                self._go_on(delivery, claim, transcript, so_far)
        except CeleryLlamaError as error:
            end("failed", JobError(code=error.code, message=str(error)))
        except redis.RedisError as error:  # the message stays with the broker, so the job is not lost
            logger.warning("job %s could not be read from Redis (%s); it goes back", job_id, error)
            end("handed_back")
        except Exception as error:
            logger.exception("job %s could not be prepared", job_id)
            why = f"the worker could not prepare the job: {type(error).__name__}"
            end("failed", JobError(code="internal_error", message=why))

    def _resume_point(self, job_id: str, claim: Claim) -> Delivered:
        first = claim.attempt == 1
        return Delivered() if first else delivered(read_events(self._connection, self._ledger.names, job_id))

    def _go_on(self, delivery: JobMessage, claim: Claim, transcript: Transcript, so_far: Delivered) -> None:
        """Bring the job into the engine, unless it was begun with another model: then it goes to whoever has that."""
        job, facts = self._read_job(delivery, claim), self._identity.facts
        transcript.fingerprint = facts.fingerprint_with(adapters_of(job))
        if may_go_on_here(self._connection, self._ledger.names, job, so_far, facts):
            if so_far.fingerprint and so_far.fingerprint != transcript.fingerprint:
                transcript.started = False  # it begins anew, and readers are told with what
            self._runner.send(Add(self._prepare(job, delivery, claim, transcript, so_far).attempt))
        else:  # not at once: this worker would be the next to take it
            logger.info("job %s was begun with another model; it goes back for a worker that has it", delivery.job_id)
            close = partial(self._publisher.close, delivery.job_id, claim.attempt, "handed_back")
            self._postponed.put(_OTHERS_TURN_SECONDS, close)

    def _read_job(self, delivery: JobMessage, claim: Claim) -> Job:
        if len(claim.body) > self._settings.max_job_bytes:
            raise JobTooLarge(len(claim.body), self._settings.max_job_bytes)
        try:
            body = from_json(claim.body)
        except ValueError as error:
            raise InvalidJob("the job is not JSON that can be read") from error
        return parse_job(delivery.task, body)

    def _prepare(
        self, job: Job, delivery: JobMessage, claim: Claim, transcript: Transcript, so_far: Delivered
    ) -> PreparedJob[A]:
        said, limit = so_far.choices, delivery.limit_seconds
        prepared = self._preparer.prepare(delivery.job_id, claim.attempt, job, said, limit)
        transcript.describe(
            choices=prepared.choices,
            prompt_tokens=prepared.prompt_tokens,
            seed=prepared.seed,
            reproducible=prepared.reproducible,
            logprobs=prepared.logprobs,
        )
        return prepared

    def _cancel(self, job_id: str) -> None:
        if self._insist(self._ledger.cancel(job_id)) == "requested":
            self._runner.send(End(job_id, "cancelled"))

    def _acknowledge(self, job_id: str) -> None:
        with contextlib.suppress(InvalidJob):  # it has no ledger entry
            self._insist(self._ledger.acknowledge(job_id), at_least_once=True)

    def _insist(self, operation: Operation[T], *, at_least_once: bool = False) -> T | None:
        """Run an operation until the server has answered; None if the worker stops before."""
        while at_least_once or not self._stopping.is_set():
            at_least_once = False
            try:
                return execute(self._connection, operation)
            except redis.RedisError as error:
                logger.warning("Redis does not answer (%s); trying again", error)
                self._stopping.wait(_RETRY_SECONDS)
        return None
