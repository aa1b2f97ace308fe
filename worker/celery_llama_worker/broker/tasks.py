"""The Celery task, and the one place where an outcome becomes a Celery outcome. Runs on the finisher threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from celery import Celery
from celery.exceptions import Ignore
from celery.worker.control import control_command

from celery_llama.protocol.errors import GenerationFailed
from celery_llama.protocol.names import CANCEL_COMMAND, EMBED_TASK, GENERATE_TASK
from celery_llama_worker.bookkeeping.outcome import DROPPED, Outcome


class Outcomes(threading.local):
    """Hands the outcome of the job at hand to the task's function, which the stock tracer calls."""

    current: Outcome = DROPPED

    @contextlib.contextmanager
    def finish_with(self, outcome: Outcome) -> Iterator[None]:
        """Context in which the task's function finds this outcome."""
        self.current = outcome
        try:
            yield
        finally:
            self.current = DROPPED


def register(app: Celery, outcomes: Outcomes) -> None:
    """Define the tasks on the application."""

    def outcome(*_args: Any, **_kwargs: Any) -> dict[str, Any]:
        return conclude(outcomes.current)

    for name in (GENERATE_TASK, EMBED_TASK):
        _register(app, name, outcome)


def _register(app: Celery, name: str, function: Callable[..., Any]) -> None:
    task = app.task(
        function,
        name=name,
        Request="celery_llama_worker.broker.delivery:EngineRequest",
        # An expected way to end: no traceback in the log.
        throws=(GenerationFailed,),
        # Whatever it is sent with, admission judges it, and the ledger hears of it.
        typing=False,
        # The pool says STARTED when the job starts; the tracer runs only at the end.
        track_started=False,
        # The arguments hold the prompt and the value holds the text; neither belongs into logs or events.
        resultrepr_maxsize=1,
    )
    task.engine_task = True
    # By this Celery decides whether a task, linked to another's failure, is called on the spot or sent like any other.
    task.__header__ = _arguments


def _arguments(_earlier_result: Any = None, *, job: Any = None) -> None:
    """What the task is sent with; a chain adds the result of the task before."""


def register_cancel_command() -> None:
    """Let workers obey the client's broadcast. Celery keeps control commands per process, not per application."""

    @control_command(name=CANCEL_COMMAND, args=[("job_id", str)])  # type: ignore[untyped-decorator]
    def cancel(state: Any, job_id: str) -> dict[str, str]:
        state.consumer.pool.cancel(job_id)
        return {"ok": f"job {job_id} will be cancelled"}


def conclude(outcome: Outcome) -> dict[str, Any]:
    """The task's value, or the exception that stands for how it ended."""
    result = outcome.result
    if result is None or result.status == "cancelled":
        raise Ignore  # somebody else's job, or REVOKED is stored by the request
    if result.error is not None:
        raise GenerationFailed(result.error.code, result.error.message)
    return result.model_dump(mode="json", exclude_none=True)
