"""The engine thread: its inbox, the step loop, and the figures that others may read.

Owns scheduler and engine: nobody else touches them, so nothing needs a lock. Waits for its inbox when there is nothing
to compute or when the outbox is full, and for nothing else.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol

from celery_llama.protocol.results import JobError
from celery_llama_worker.engine.attempt import A, A_contra
from celery_llama_worker.engine.counters import Counters
from celery_llama_worker.engine.llama.time_slice import lengthen_slice
from celery_llama_worker.engine.outputs import EndReason, Output
from celery_llama_worker.engine.plan import Call, CallResult, Engine, Plan
from celery_llama_worker.threads import Crash, vital_thread

#: How often a paused engine looks whether the outbox has room again.
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Add(Generic[A]):
    """Take in an attempt."""

    attempt: A


@dataclass(frozen=True, slots=True)
class End:
    """End an attempt early."""

    job_id: str
    reason: EndReason
    error: JobError | None = None


@dataclass(frozen=True, slots=True)
class EndAll:
    """End every attempt early."""

    reason: EndReason


@dataclass(frozen=True, slots=True)
class Ping:
    """Show that the thread is alive although it has nothing to do."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop."""


Command = Add[A] | End | EndAll | Ping | Stop


class Scheduler(Protocol[A_contra]):
    """Decides and accounts (`engine.scheduler`, `engine.embedding`). Engine thread, but for the counters."""

    counters: Counters

    def add(self, attempt: A_contra) -> list[Output]:
        """Take in an attempt of the kind that the model's preparer makes."""

    def end(self, job_id: str, reason: EndReason, error: JobError | None = None) -> list[Output]:
        """End an attempt early, if it is here."""

    def expire(self, now: float) -> list[Output]:
        """End the attempts whose time is up (monotonic seconds)."""

    def tidy(self) -> None:
        """Free what ended attempts held; between steps."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""

    @property
    def job_ids(self) -> list[str]:
        """The jobs that are here."""

    def plan(self, now: float) -> Plan:
        """Write the next step."""

    def commit(self, call: Call, result: CallResult) -> list[Output]:
        """Account for one call of the plan."""


class Runner(Generic[A]):
    """Runs the engine thread; its methods may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler[A],
        emit: Callable[[list[Output]], None],
        outbox_full: Callable[[], bool],
        crash: Crash,
    ) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._emit = emit
        self._outbox_full = outbox_full
        self._inbox: queue.SimpleQueue[Command[A]] = queue.SimpleQueue()
        self._thread = vital_thread("engine", self._run, crash)
        #: When the loop last came round or a call ended (monotonic seconds).
        self.progress_at = time.monotonic()

    @property
    def counters(self) -> Counters:
        """What the engine has done so far."""
        return self._scheduler.counters

    @property
    def longest_call_seconds(self) -> float:
        """How long the engine may well be silent: what its longest call takes."""
        return self._scheduler.counters.longest_call_seconds

    def start(self) -> None:
        """Begin to wait for attempts."""
        self._thread.start()

    def send(self, command: Command[A]) -> None:
        """Leave a command for the engine thread."""
        self._inbox.put(command)

    def stop(self) -> None:
        """Leave the loop after the step in progress, however long that takes.

        The engine is closed next, and freeing a context that computes would end the process in the middle of stopping.
        A step that never ends is the keeper's concern.
        """
        self._inbox.put(Stop())
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        lengthen_slice()
        while self._take_commands():
            self.progress_at = time.monotonic()
            self._scheduler.tidy()
            if not self._scheduler.idle and not self._outbox_full():
                self._step()

    def _step(self) -> None:
        scheduler = self._scheduler
        now = time.monotonic()
        self._send_out(scheduler.expire(now))
        plan = scheduler.plan(now)
        # The engine goes first: there may be cells to drop although there is nothing to compute.
        for result, call in zip(self._engine.execute(plan), plan.calls, strict=False):
            self.progress_at = time.monotonic()
            self._send_out(scheduler.commit(call, result))
        scheduler.tidy()

    def _take_commands(self) -> bool:
        """Carry out what the inbox holds; waits for it if there is nothing else to do. False at the end."""
        block = self._scheduler.idle
        timeout = None
        if not block and self._outbox_full():
            block, timeout = True, _PAUSE_SECONDS
        while True:
            try:
                command = self._inbox.get(block, timeout)
            except queue.Empty:
                return True
            if isinstance(command, Stop):
                return False
            self._send_out(self._obey(command))
            block = False

    def _obey(self, command: Command[A]) -> Iterable[Output]:
        match command:
            case Add(attempt):
                return self._scheduler.add(attempt)
            case End(job_id, reason, error):
                return self._scheduler.end(job_id, reason, error)
            case EndAll(reason):
                return [output for job_id in self._scheduler.job_ids for output in self._scheduler.end(job_id, reason)]
            case _:
                return []

    def _send_out(self, outputs: Iterable[Output]) -> None:
        if batch := list(outputs):
            self._emit(batch)
