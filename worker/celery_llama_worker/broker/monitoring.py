"""Celery's events, a few times a second instead of at every turn of the hub. Hub thread.

Sending them is a call to Redis. With each event alone, that was a third of what the main thread did.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

#: Flower shows a job by so much later.
GATHER_SECONDS = 0.2


class Gathering:
    """Sends what a dispatcher has buffered, once a while."""

    def __init__(self, hub: Any, dispatcher: Any) -> None:
        self._hub, self._dispatcher = hub, dispatcher
        self._due = False
        dispatcher.on_send_buffered = self._buffered

    def _buffered(self) -> None:
        if not self._due:
            self._due = True
            self._hub.call_later(GATHER_SECONDS, self.send)

    def send(self) -> None:
        """Send everything now; while the server is away, Celery's dispatcher keeps it."""
        self._due = False
        self._dispatcher.flush()


class GatherEvents(bootsteps.StartStopStep):  # type: ignore[misc]
    """The step of Celery's consumer that sees to it, at every connect."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._gathering: Gathering | None = None

    def start(self, parent: Any) -> None:
        """Gather the events of a new connection."""
        self._gathering = Gathering(parent.hub, parent.event_dispatcher)

    def stop(self, parent: Any) -> None:
        """Send the last ones: the hub does not turn any more."""
        if self._gathering is not None:  # a connect that failed half-way stops what it has not started
            self._gathering.send()
