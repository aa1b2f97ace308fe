"""The keeper: vouches for this worker and its jobs while the engine makes progress, only then. Runs the keeper thread.

Where a call takes longer than a lease, as on a small machine with a large model, the engine has as long as it needs.

Three leases hang on it: the worker's own key, the jobs' places in the ledger's open set, and the scores of kombu's
unacknowledged messages. A worker that stops vouching loses its jobs to others within the lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

import redis

from celery_llama.ledger.ledger import Worker
from celery_llama.ledger.scripts import execute
from celery_llama_worker.bookkeeping.reconciler import Reconciler
from celery_llama_worker.bookkeeping.urgent import UrgentWatch
from celery_llama_worker.runner import Ping
from celery_llama_worker.server import insist
from celery_llama_worker.settings import WorkerSettings
from celery_llama_worker.threads import Crash, vital_thread

logger = logging.getLogger(__name__)

#: How often the queue is looked at for jobs more urgent than those that run.
_LOOK_SECONDS = 0.5
#: An engine that is silent for so many times what its longest call takes is not at work any more.
_CALLS = 3.0


class Engine(Protocol):
    """What the keeper needs of the engine thread (`runner.Runner`)."""

    #: When the engine last made progress (monotonic seconds).
    progress_at: float

    @property
    def longest_call_seconds(self) -> float:
        """How long it may well be silent: what its longest call takes."""

    def send(self, command: Ping) -> None:
        """Ask it for a sign of life."""


class Keeper:
    """Runs the keeper thread."""

    def __init__(
        self,
        connection: redis.Redis,
        settings: WorkerSettings,
        worker: Worker,
        runner: Engine,
        reconciler: Reconciler,
        urgent: UrgentWatch,
        in_work: Callable[[], tuple[Collection[str], Collection[str]]],
        crash: Crash,
    ) -> None:
        """`in_work` names the jobs and the delivery tags that this worker holds; `crash` ends the process."""
        self._connection = connection
        self._settings = settings
        self._ledger = settings.ledger
        self._lease_seconds = settings.lease_seconds
        self._interval_seconds = settings.lease_seconds / 5
        self._stall_seconds = settings.stall_seconds
        self._worker = worker
        self._runner = runner
        self._reconciler = reconciler
        self._urgent = urgent
        self._in_work = in_work
        self._crash = crash
        self._stopping = threading.Event()
        self._thread = vital_thread("keeper", self._run, crash)

    def start(self) -> None:
        """Take the lease and begin to keep it; raises ServerUnreachable. The model took a while to load."""
        insist(self._settings, self._vouch)
        self._thread.start()

    def stop(self) -> None:
        """Give up the lease: others may take over at once."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._thread.join()
        try:
            execute(self._connection, self._ledger.resign(self._worker))
        except redis.RedisError as error:
            logger.warning("the lease could not be given up and will lapse by itself: %s", error)

    # ---- keeper thread

    def _run(self) -> None:
        silence = _Silence(self._runner, self._interval_seconds)
        while self._rest():
            silence.look(time.monotonic())
            if silence.outlasts(self._stall_seconds):
                self._crash(TimeoutError(f"the engine has made no progress for {silence.seconds:.0f} s"))
                return
            self._runner.send(Ping())
            if silence.outlasts(self._lease_seconds):
                continue  # no progress for a whole lease: somebody else shall have the jobs
            try:
                self._vouch()
                self._reconciler.tick()
            except redis.RedisError as error:
                logger.warning("the lease could not be renewed: %s", error)

    def _rest(self) -> bool:
        """Let the interval pass, with an eye on the queue; False when it is time to stop."""
        end = time.monotonic() + self._interval_seconds
        while (left := end - time.monotonic()) > 0:
            if self._stopping.wait(min(left, _LOOK_SECONDS)):
                return False
            self._urgent.look()
        return True

    def _vouch(self) -> None:
        job_ids, delivery_tags = self._in_work()
        execute(
            self._connection,
            self._ledger.vouch(self._worker, time.time(), job_ids, delivery_tags),
        )


class _Silence:
    """How long the engine has been seen to make no progress.

    Time in which nobody looked does not count: the process was stopped, or the keeper waited for Redis, and an engine
    that has nothing to do answers only when it is asked.
    """

    def __init__(self, runner: Engine, interval_seconds: float) -> None:
        self._runner, self._interval_seconds = runner, interval_seconds
        self._seen, self._looked = runner.progress_at, time.monotonic()
        self.seconds = 0.0

    def look(self, now: float) -> float:
        """Seconds of silence, the time since the last look included."""
        progress_at = self._runner.progress_at
        passed = min(now - self._looked, 2 * self._interval_seconds)
        self.seconds = self.seconds + passed if progress_at == self._seen else 0.0
        self._seen, self._looked = progress_at, now
        return self.seconds

    def outlasts(self, limit_seconds: float) -> bool:
        """Whether it is longer than this, and longer than an engine that is at work may be silent."""
        return self.seconds > max(limit_seconds, _CALLS * self._runner.longest_call_seconds)
