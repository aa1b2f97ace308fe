"""The messages of Celery's that this worker holds, and how their callbacks are called. The pool's; hub thread."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from celery.worker import state as celery_state
from celery.worker.request import Request

from celery_llama.protocol.kinds import describe_job
from celery_llama_worker.bookkeeping.outcome import Outcome

#: Celery's tracer answers with: whether the task failed, the value's description or the exception, the runtime.
TracerAnswer = tuple[Any, Any, float]


class EngineRequest(Request):  # type: ignore[misc]
    """Celery's request of an engine task: being terminated means that the engine is asked to end the job.

    Stock Celery acknowledges the message in the same breath as it kills the child process. Here the message stays until
    the terminal event is in the stream; then the pool calls `conclude_revoked`.
    """

    #: When the task was accepted (Unix seconds).
    time_start: float | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Whoever sent it may have described it by its arguments, and those are the user's text.
        job = self.kwargs.get("job") if isinstance(self.kwargs, dict) else None
        self._argsrepr, self._kwargsrepr = "()", describe_job(job) if isinstance(job, dict) else "a job"

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Describe it to `inspect active`; never by its arguments."""
        description: dict[str, Any] = super().info(safe=True)
        return description

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Answer `revoke(terminate=True)`, Flower's button."""
        pool.cancel(self.id)

    def revoked(self) -> bool:
        """Whether Celery shall drop the task. Not because of a revoke: the pool sees that, the ledger hears of it."""
        return self.id not in celery_state.revoked and bool(super().revoked())

    def maybe_expire(self) -> bool:
        """Whether Celery's own `expires` ends the task; not if it may have begun, which a redelivery tells."""
        return not self.delivery_info.get("redelivered") and bool(super().maybe_expire())

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Answer a cold shutdown: nothing, since the pool hands its jobs back as it stops."""

    def let_go(self) -> None:
        """Forget the message without acknowledging it: it comes back when its lease lapses."""
        celery_state.task_ready(self)
        self.message.channel.qos.let_go(self.message.delivery_tag)

    def conclude_revoked(self, pool: Any) -> None:
        """Announce the revocation, store REVOKED, acknowledge: all that stock Celery does."""
        if self.time_start is None:
            self.time_start = time.time()
        super().terminate(pool)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Delivery:
    """A task's message between `on_apply` and its acknowledgement. Celery keeps only a weak reference to it."""

    #: What Celery takes for the process that runs the task.
    pid: int
    job_id: str
    #: Celery's tracer and its arguments: task name, id, request, body, content type, content encoding.
    tracer: Callable[..., TracerAnswer]
    arguments: tuple[Any, ...]
    request: EngineRequest
    callback: Callable[[TracerAnswer], None]
    accept_callback: Callable[[int, float], None]
    soft_limit_seconds: float | None = None
    hard_limit_seconds: float | None = None
    #: Whether the task was revoked before it came: the job is claimed and cancelled.
    revoked: bool = False
    accepted_at: float | None = None
    #: Whether the ledger has given the job to this worker; set on the admit thread.
    claimed: bool = False
    #: Earlier deliveries of the same job, whose messages still have to go.
    stale: list[EngineRequest] = field(default_factory=list)
    #: Whether a message was adopted since the claim: what it is about, only another claim can tell.
    unsure: bool = False
    #: A message for the same job that came while its end was being told to Celery.
    successor: Delivery | None = None
    #: Set once the attempt is over; a redelivery that comes later is not adopted.
    outcome: Outcome | None = None
    #: Whether Celery's hard time limit has ended the job; decided with the outcome, since time goes on.
    hit_hard_limit: bool = False
    answer: TracerAnswer | None = None

    @classmethod
    def taken(
        cls, pid: int, tracer: Any, arguments: tuple[Any, ...], request: EngineRequest, options: dict[str, Any]
    ) -> Self:
        """Make it of what Celery gives to its pool."""
        job_id = options["correlation_id"]
        return cls(
            pid=pid,
            job_id=job_id,
            tracer=tracer,
            arguments=arguments,
            request=request,
            callback=options["callback"],
            accept_callback=options["accept_callback"],
            soft_limit_seconds=options.get("soft_timeout"),
            hard_limit_seconds=options.get("timeout"),
            revoked=job_id in celery_state.revoked,
        )

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.arguments[0])

    @property
    def wire_job(self) -> tuple[str, int]:
        """The job's body and priority as the message has them; whatever is wrong with them is found after the claim."""
        request = self.arguments[2]
        keywords, positional = request.get("kwargs") or {}, request.get("args") or ()
        body = keywords.get("job", positional[0] if positional else None)
        priority = (request.get("delivery_info") or {}).get("priority")
        # In ASCII, whatever it is: only JSON that means something gets past the validation.
        return json.dumps(body, separators=(",", ":")), priority if type(priority) is int else 0  # True is an int, too

    @property
    def limit_seconds(self) -> float | None:
        """Celery's time limits, the shorter one."""
        limits = [limit for limit in (self.soft_limit_seconds, self.hard_limit_seconds) if limit]
        return min(limits, default=None)

    def terminate(self, signal: Any = None) -> None:
        """Part of Celery's contract for what `apply_async` returns; the request has asked the pool already."""

    def accept(self) -> None:
        """Tell Celery that the task has started, once."""
        if self.accepted_at is not None:
            return
        self.accepted_at = time.monotonic()
        self.accept_callback(self.pid, self.accepted_at)

    def adopt(self, request: EngineRequest, callback: Any, accept_callback: Any) -> None:
        """Take a second message for the same job in the first one's place."""
        self.unsure = True
        self.stale.append(self.request)
        self.request, self.callback, self.accept_callback = request, callback, accept_callback
        if self.accepted_at is not None:
            accept_callback(self.pid, self.accepted_at)

    def settle(self, outcome: Outcome) -> None:
        """The attempt is over."""
        self.outcome = outcome
        if outcome.result is not None and self.hard_limit_seconds is not None and self.accepted_at is not None:
            timed_out = any(choice.finish_reason == "timeout" for choice in outcome.result.choices)
            self.hit_hard_limit = timed_out and time.monotonic() - self.accepted_at >= self.hard_limit_seconds

    def abandon(self) -> None:
        """Let go of all its messages: something has gone wrong, and they come back when their leases lapse."""
        for request in (self.request, *self.stale):
            request.let_go()

    def conclude(self, pool: Any) -> None:
        """Give the outcome to Celery: the state is stored, the event is sent, the message is acknowledged."""
        assert self.outcome is not None
        result = self.outcome.result
        if self.outcome.kind == "dropped":
            # Whoever has the job may have lost its own message: if that worker dies, this one brings the job back.
            self.request.let_go()
        elif self.outcome.kind == "handed_back":
            celery_state.task_ready(self.request)
            self.request.reject(requeue=True)
        elif result is not None and result.status == "cancelled":
            self.request.conclude_revoked(pool)
        elif self.hit_hard_limit:
            self.request.on_timeout(False, self.hard_limit_seconds)
        elif self.answer is not None:
            failed, value, runtime = self.answer
            if self.accepted_at is not None:
                runtime = time.monotonic() - self.accepted_at
            if not failed and result is not None:
                value = f"{result.status}, {result.usage.completion_tokens} tokens"  # Flower shows it; texts stay out
            self.callback((failed, value, runtime))
        for request in self.stale:
            request.acknowledge()

    @property
    def needs_tracer(self) -> bool:
        """Whether Celery's tracer stores the outcome; a revocation and a hard time limit are stored by the request."""
        if self.outcome is None or self.outcome.kind != "ended" or self.hit_hard_limit:
            return False
        return self.outcome.result is None or self.outcome.result.status != "cancelled"


class Deliveries(dict[str, Delivery]):
    """What this worker holds, by job. Changed on the hub thread only."""

    def in_work(self) -> tuple[list[str], list[str]]:
        """The claimed jobs, and the tags of all messages, also those that Celery holds back. Any thread."""
        held = list(self.values())
        requests = [request for delivery in held for request in (delivery.request, *delivery.stale)]
        requests += list(celery_state.requests.values())
        tags = {str(request.message.delivery_tag) for request in requests}
        return [delivery.job_id for delivery in held if delivery.claimed and delivery.outcome is None], sorted(tags)
