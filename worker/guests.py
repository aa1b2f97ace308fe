"""Guests: places beyond the prefetch count, for jobs more urgent than those that run. Owned by the hub thread."""

from __future__ import annotations

from typing import Any

from celery import bootsteps


class Guests:
    """Raises Celery's prefetch count by one a guest, and lowers it again as the crowd gets smaller."""

    def __init__(self, places: int, most: int) -> None:
        """`places`: the messages that this worker takes anyway. `most`: how many guests there may be."""
        self._places = places
        self._most = most
        self._count = 0
        self._hub: Any = None
        self._qos: Any = None

    def attach(self, hub: Any, qos: Any) -> None:
        """Called at every connect, when Celery starts again with its own prefetch count."""
        self._hub, self._qos, self._count = hub, qos, 0

    def invite(self) -> None:
        """Make a place for one message more. Any thread."""
        if self._hub is not None:
            self._hub.call_soon(self._invite)

    def _invite(self) -> None:
        if self._count < self._most:
            self._qos.increment_eventually()
            self._count += 1

    def left(self, held: int) -> None:
        """A job is done, and `held` messages are still here: give up the places that nobody needs."""
        while self._count and held < self._places + self._count:
            self._qos.decrement_eventually()
            self._count -= 1


def consumer_step(guests: Guests) -> type[bootsteps.StartStopStep]:
    """The step of Celery's consumer that tells the guests where they are."""

    class AttachGuests(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, parent: Any) -> None:
            guests.attach(parent.hub, parent.qos)

    return AttachGuests
