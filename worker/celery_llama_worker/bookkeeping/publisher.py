"""The outbox: everything that the engine says goes from here to Redis, in order, in one call a flush.

Owns the transcripts and the event connection; runs the publisher thread. A server that is away is waited for: what the
engine says meanwhile piles up here, and `full` makes the engine pause before that grows without limit. An attempt's end
is reported to its owner only when the terminal event and the result are in Redis.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import redis

from celery_llama.ledger.ledger import Emission, Ledger
from celery_llama.ledger.operation import Operation
from celery_llama.ledger.scripts import execute
from celery_llama.protocol.results import JobError
from celery_llama_worker.bookkeeping.outcome import FENCED, HANDED_BACK, Outcome
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.outputs import Ended, EndReason, Output, Text
from celery_llama_worker.threads import Crash, vital_thread

logger = logging.getLogger(__name__)
T = TypeVar("T")

_RETRY_SECONDS = 0.5
#: Most jobs in one Lua call: a longer one would keep the server from its other clients.
_JOBS_PER_CALL = 256


@dataclass(frozen=True, slots=True)
class Open:
    """A new attempt: its transcript, and whom to tell how it ended."""

    transcript: Transcript
    on_end: Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Close:
    """End an attempt that never reached the engine."""

    ended: Ended


class Publisher:
    """Runs the publisher thread; `put`, `open` and `close` may be called from any thread."""

    def __init__(
        self,
        connection: redis.Redis,
        ledger: Ledger,
        end_job: Callable[[str, EndReason], None],
        outbox_tokens: int,
        crash: Crash,
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._end_job = end_job
        self._outbox_tokens = outbox_tokens
        self._inbox: queue.SimpleQueue[list[Output] | Open | Close | None] = queue.SimpleQueue()
        self._jobs: dict[tuple[str, int], Open] = {}
        self._put_tokens = 0
        self._written_tokens = 0
        self._stopping = threading.Event()
        self._thread = vital_thread("publisher", self._run, crash)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def open(self, transcript: Transcript, on_end: Callable[[Outcome], None]) -> None:
        """Announce an attempt before anything is said about it."""
        self._inbox.put(Open(transcript, on_end))

    def put(self, outputs: list[Output]) -> None:
        """Publish what the engine says. Called by the engine thread only, so the count needs no lock."""
        self._put_tokens += sum(len(output.tokens) for output in outputs if isinstance(output, Text))
        self._inbox.put(outputs)

    def close(self, job_id: str, attempt: int, reason: EndReason, error: JobError | None = None) -> None:
        """End an attempt that the engine has never seen."""
        self._inbox.put(Close(Ended(job_id, attempt, reason, error)))

    @property
    def full(self) -> bool:
        """Whether the engine should pause."""
        return self._put_tokens - self._written_tokens > self._outbox_tokens

    def stop(self, timeout_seconds: float) -> None:
        """Write what is there and leave; gives up on a server that stays away."""
        self._inbox.put(None)
        if self._thread.ident is None:
            return
        self._thread.join(timeout_seconds)
        self._stopping.set()
        self._thread.join(2 * _RETRY_SECONDS)

    # ---- publisher thread

    def _run(self) -> None:
        running = True
        while running and not self._stopping.is_set():
            outputs: list[Output] = []
            running = self._gather(outputs)
            try:
                self._flush(outputs)
            except _GivenUp:
                logger.error("Redis stayed away: %d event(s) were not written", len(outputs))

    def _gather(self, outputs: list[Output]) -> bool:
        """Wait for something to say, then take all there is; False at the end."""
        item = self._inbox.get()
        while True:
            match item:
                case None:
                    return False
                case Open():
                    self._jobs[item.transcript.job_id, item.transcript.attempt] = item
                case Close(ended):
                    outputs.append(ended)
                case list():
                    outputs += item
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return True

    def _flush(self, outputs: list[Output]) -> None:
        by_job: dict[tuple[str, int], list[Output]] = {}
        for output in outputs:
            by_job.setdefault((output.job_id, output.attempt), []).append(output)
        emissions: list[Emission] = []
        for key, said in by_job.items():
            if key in self._jobs:
                emissions.append(self._jobs[key].transcript.write(said))
        self._emit([emission for emission in emissions if emission.events])
        self._written_tokens += sum(len(output.tokens) for output in outputs if isinstance(output, Text))
        for output in outputs:
            if isinstance(output, Ended) and (output.job_id, output.attempt) in self._jobs:
                self._end(output, self._jobs.pop((output.job_id, output.attempt)))

    def _emit(self, emissions: list[Emission]) -> None:
        for start in range(0, len(emissions), _JOBS_PER_CALL):
            part = emissions[start : start + _JOBS_PER_CALL]
            answers = self._persist(self._ledger.emit(part))
            for emission, answer in zip(part, answers, strict=True):
                if answer == "cancel":
                    self._end_job(emission.job_id, "cancelled")
                elif answer == "fenced":
                    logger.warning(
                        "job %s has another owner now; its attempt %d stops", emission.job_id, emission.attempt
                    )
                    self._end_job(emission.job_id, "dropped")

    def _end(self, ended: Ended, job: Open) -> None:
        if ended.reason == "dropped":
            job.on_end(FENCED)
        elif ended.reason == "handed_back":
            self._persist(self._ledger.release(ended.job_id, ended.attempt))
            job.on_end(HANDED_BACK)
        else:
            seq, event, result = job.transcript.end(ended)
            answer = self._persist(self._ledger.finish(ended.job_id, ended.attempt, seq, event, result))
            why = f" ({result.error.code})" if result.error else ""
            tokens = result.usage.completion_tokens
            logger.info("job %s: %s%s, %d token(s)", ended.job_id, result.status, why, tokens)
            job.on_end(FENCED if answer == "fenced" else Outcome("ended", result))

    def _persist(self, operation: Operation[T]) -> T:
        """Run an operation until the server has answered. Repeating is harmless: every entry has its number."""
        waited = False
        while True:
            try:
                answer = execute(self._connection, operation)
            except redis.RedisError as error:
                if not waited:
                    logger.warning("Redis does not take events (%s); they wait", error)
                waited = True
                if self._stopping.wait(_RETRY_SECONDS):
                    raise _GivenUp from error
            else:
                if waited:
                    logger.warning("Redis takes events again")
                return answer


class _GivenUp(Exception):
    """The worker stops while the server is away."""
