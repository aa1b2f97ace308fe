"""The pool: Celery's pool contract, in which a task occupies an engine slot instead of a process or a thread.

Owns the deliveries. Runs on the hub thread, which is the main thread; the finisher threads run Celery's own tracer for
a millisecond once a job has ended, so that results, links, retries, signals and events stay stock. Read with
`celery/concurrency/base.py` and `celery/worker/request.py` (5.7) at hand: what is public there is what we rely on.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from celery.concurrency.base import BasePool, apply_target
from celery.worker import state as celery_state
from kombu.asynchronous import get_event_loop

from celery_llama_worker.bookkeeping.outcome import DROPPED, HANDED_BACK, Outcome
from celery_llama_worker.broker.delivery import Deliveries, Delivery
from celery_llama_worker.broker.prefetch import Prefetch
from celery_llama_worker.broker.signals import SecondSignal
from celery_llama_worker.broker.tasks import Outcomes

logger = logging.getLogger(__name__)

_FINISHER_THREADS = 4


class Admission(Protocol):
    """What the pool asks of the ledger's side (`bookkeeping.admission`); every call returns at once."""

    def admit(self, delivery: Delivery, pool: EnginePool) -> None:
        """Claim and prepare the job; the pool hears how that ends."""

    def cancel(self, job_id: str) -> None:
        """Ask for the job's end."""

    def acknowledge(self, job_id: str) -> None:
        """Note in the ledger that Celery knows how the job has ended."""

    def hand_back(self) -> None:
        """End every attempt so that others may take the jobs at once."""


@dataclass(frozen=True, slots=True)
class PoolParts:
    """What the pool works with."""

    admission: Admission
    #: Where the task's function finds how its job ended.
    outcomes: Outcomes
    #: Shared with the keeper, which vouches for them.
    deliveries: Deliveries
    prefetch: Prefetch
    #: Figures for `inspect stats` and Flower's Pool tab.
    statistics: Callable[[], dict[str, Any]]
    drain_seconds: float


class EnginePool(BasePool):  # type: ignore[misc]
    """Takes tasks from Celery, gives their outcomes back."""

    signal_safe = False
    body_can_be_buffer = True
    task_join_will_block = False
    #: Set on the subclass that the composition root makes: Celery instantiates the pool itself.
    parts: ClassVar[PoolParts]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pids = itertools.count(1)
        self._deliveries = self.parts.deliveries
        self._finishers = ThreadPoolExecutor(_FINISHER_THREADS, thread_name_prefix="finisher")
        #: What other threads have to say, in order; the hub's own callbacks have none.
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._adopted = 0
        self._hub: Any = None

    # ---- life cycle, called by Celery

    def on_start(self) -> None:
        """Remember the event loop."""
        self._hub = get_event_loop()

    def register_with_event_loop(self, hub: Any) -> None:
        """Called at every connect."""
        self._hub = hub
        # A callback that raises takes the hub's other callbacks with it; what is left in the inbox waits for a tick.
        hub.on_tick.add(self._work_off)

    def on_stop(self) -> None:
        """Warm shutdown: let running jobs finish, up to the drain time; hand the rest back.

        A cold one begins with this too (`celery.apps.worker.on_cold_shutdown`), and says by a flag that it is cold.
        """
        self._stop(0.0 if celery_state.should_terminate else self.parts.drain_seconds)

    def on_terminate(self) -> None:
        """Cold shutdown: hand everything back."""
        self._stop(0.0)

    def flush(self) -> None:
        """The connection is lost; the jobs run on, and their redeliveries are adopted."""

    def grow(self, n: int = 1) -> None:
        """Flower's button; refused, because the cells are laid out at start."""
        raise ValueError("the number of slots is set when the worker starts: --slots")

    shrink = restart = grow

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Nothing to kill: `EngineRequest.terminate` has asked the engine."""

    # ---- a task comes

    def on_apply(self, target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Take a task; returns what Celery keeps as the task's handle."""
        if not getattr(self.app.tasks[args[0]], "engine_task", False):
            callbacks = options.get("callback"), options.get("accept_callback")
            return self._finishers.submit(apply_target, target, args, kwargs or {}, *callbacks)
        job_id, request = options["correlation_id"], options["accept_callback"].__self__
        running = self._deliveries.get(job_id)
        if running is not None and running.outcome is None:
            # After a reset connection kombu delivers what is still in work here a second time.
            self._adopted += 1
            running.adopt(request, options["callback"], options["accept_callback"])
            return running
        delivery = Delivery.taken(next(self._pids), target, args, request, options)
        self._deliveries[job_id] = delivery
        if running is None:
            self.parts.admission.admit(delivery, self)
        else:  # what it is about can be asked only when Celery knows how the job has ended
            running.successor = delivery
        return delivery

    def cancel(self, job_id: str) -> None:
        """Somebody wants the job ended; what becomes of it comes back as its outcome."""
        self.parts.admission.cancel(job_id)

    # ---- called by other threads

    def accepted(self, delivery: Delivery) -> None:
        """The job is claimed and its prompt is prepared. Any thread."""
        self._post(delivery.accept)

    def ended(self, delivery: Delivery, outcome: Outcome) -> None:
        """The attempt is over, and the ledger says so. Any thread."""
        self._post(lambda: self._settle(delivery, outcome))

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.put(action)
        self._hub.call_soon(self._work_off)

    # ---- finisher thread

    def _finish(self, delivery: Delivery) -> None:
        assert delivery.outcome is not None
        try:
            with self.parts.outcomes.finish_with(delivery.outcome):
                delivery.answer = delivery.tracer(*delivery.arguments)
        except Exception:  # the message comes back, not at once, and whoever gets it finds the result in the ledger
            logger.exception("job %s has ended, but Celery's result could not be stored", delivery.job_id)
            delivery.outcome = DROPPED
        self._post(lambda: self._conclude(delivery))

    # ---- hub thread; the main thread while stopping

    def _work_off(self) -> None:
        while not self._inbox.empty():
            self._carry_out(self._inbox.get())

    def _carry_out(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # Redis or a bug; Celery would end the worker
            logger.exception("the pool could not do what it was told")

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        """Believe the outcome, unless something has happened since the claim that only another claim can clear up."""
        if delivery.outcome is not None:
            return
        delivery.claimed = False
        if outcome.kind == "fenced" and self._stopping:
            outcome = HANDED_BACK
        elif outcome.kind == "fenced" or (delivery.unsure and outcome.kind != "handed_back" and not self._stopping):
            delivery.unsure = False
            self.parts.admission.admit(delivery, self)
            return
        delivery.settle(outcome)
        if delivery.needs_tracer:
            self._finishers.submit(self._finish, delivery)
        else:
            self._conclude(delivery)

    def _conclude(self, delivery: Delivery) -> None:
        if self._deliveries.get(delivery.job_id) is delivery:
            del self._deliveries[delivery.job_id]
        try:
            delivery.conclude(self)
            # Only now: if the worker dies before, the reconciler finds the job, and another one tells Celery.
            if delivery.outcome is not None and delivery.outcome.kind == "ended":
                self.parts.admission.acknowledge(delivery.job_id)
        except Exception:  # Redis, mostly: the message is not acknowledged, and its redelivery finds the job ended
            logger.exception("job %s has ended, but its message could not be acknowledged", delivery.job_id)
            delivery.abandon()
        if delivery.successor is not None:
            self.parts.admission.admit(delivery.successor, self)
        self.parts.prefetch.lower(len(self._deliveries))

    def _stop(self, drain_seconds: float) -> None:
        if self._stopping:
            return
        self._stopping = True
        second_signal = SecondSignal()
        logger.info("stopping; %d job(s) have %g s to finish", len(self._deliveries), drain_seconds)
        deadline = time.monotonic() + drain_seconds
        while self._deliveries and time.monotonic() < deadline and not second_signal.received:
            self._work_off_one(0.1)
        left = len(self._deliveries)
        self.parts.admission.hand_back()
        give_up = time.monotonic() + 5.0
        while self._deliveries and time.monotonic() < give_up:
            self._work_off_one(0.1)
        self._finishers.shutdown(wait=True)
        self._work_off()
        logger.info("stopped; %d job(s) handed back", left)

    def _work_off_one(self, timeout_seconds: float) -> None:
        try:
            action = self._inbox.get(timeout=timeout_seconds)
        except queue.Empty:
            return
        self._carry_out(action)

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return {
            **info,
            "pid": os.getpid(),
            "held": len(self._deliveries),
            "adopted": self._adopted,
            **self.parts.statistics(),
        }
