"""Sends task messages and broadcasts through Celery, which is imported when the first one is sent. Any thread."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from celery_llama.client.steps import Publish, TellWorkers
from celery_llama.settings import Settings

if TYPE_CHECKING:
    from celery import Celery


class Messenger:
    """Performs the steps that are Celery's to perform."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _app(self) -> Celery:
        from celery_llama.celery_app import make_app

        return make_app(self._settings, reads_results=False)

    def perform(self, step: Publish | TellWorkers) -> None:
        """Send it; raises redis.ConnectionError."""
        from celery_llama.celery_app import publish, tell_workers_to_cancel

        if isinstance(step, Publish):
            publish(self._app, step.job_id, step.body, step.priority)
        else:
            tell_workers_to_cancel(self._app, step.job_id)

    def close(self) -> None:
        """Close Celery's connections, if there are any."""
        if "_app" in self.__dict__:
            self._app.close()
