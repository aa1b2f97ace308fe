"""Celery's result backend, for the worker process only: it waits for a Redis that is away.

Stock Celery gives up after a while, and once Redis is back stores the connection error as the task's failure: a job
that had completed counts as failed. Whoever stores here, mostly a finisher thread, tries until Redis answers; when the
worker stops, the error goes out, the message stays, and the next worker stores what the ledger says.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.backends import BACKEND_ALIASES
from celery.backends.redis import RedisBackend
from celery.states import STARTED
from celery.worker import state
from kombu.utils.encoding import bytes_to_str

from celery_llama.ledger.ledger import TaskState


class PatientBackend(RedisBackend):  # type: ignore[misc]
    """Tries again until the worker stops."""

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Called by Celery after a failure, on whatever thread stores."""
        return not _stopping() and bool(super().exception_safe_to_retry(exc))

    def started(self, task_id: str, meta: dict[str, Any]) -> TaskState:
        """What `store_result` would store for STARTED; the claim does it, in the same call."""
        result = self.encode_result(meta, STARTED)
        value = self.encode({**self._get_result_meta(result, STARTED, None, None), "task_id": task_id})
        return TaskState(bytes_to_str(self.get_key_for_task(task_id)), bytes_to_str(value), int(self.expires))


def install(app: Celery) -> None:
    """Let Celery's names for Redis mean the patient backend; before the application has a backend."""
    BACKEND_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:PatientBackend"))
    retries: dict[str, Any] = {
        "result_backend_always_retry": True,
        "result_backend_base_sleep_between_retries_ms": 50,
        "result_backend_max_sleep_between_retries_ms": 1_000,
        # The loop inside the loop asks nobody whether to go on.
        "result_backend_transport_options": {"retry_policy": {"max_retries": 0}},
    }
    app.conf.update(retries)


def _stopping() -> bool:
    """Whether Celery has been told to stop; exit code 0 counts."""
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))
