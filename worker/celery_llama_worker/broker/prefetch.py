"""Celery's prefetch count, raised for jobs more urgent than those that run. Owned by the hub thread."""

from __future__ import annotations

from typing import Any

from celery import bootsteps


class Prefetch:
    """Raises Celery's prefetch count by one for each urgent job, and lowers it again as the jobs in hand get fewer."""

    def __init__(self, places: int, most_extra: int) -> None:
        """`places`: the messages that this worker takes anyway. `most_extra`: how many more there may be."""
        self._places = places
        self._most_extra = most_extra
        self._extra = 0
        self._hub: Any = None
        self._qos: Any = None

    def attach(self, hub: Any, qos: Any) -> None:
        """Called at every connect, when Celery starts again with its own prefetch count."""
        self._hub, self._qos, self._extra = hub, qos, 0

    def fetch_one_more(self) -> None:
        """Make room for one message more. Any thread."""
        if self._hub is not None:
            self._hub.call_soon(self._raise)

    def _raise(self) -> None:
        if self._extra < self._most_extra:
            self._qos.increment_eventually()
            self._extra += 1

    def lower(self, held: int) -> None:
        """A job is done, and `held` messages are still here: give up what nobody needs any more."""
        while self._extra and held < self._places + self._extra:
            self._qos.decrement_eventually()
            self._extra -= 1


def prefetch_step(prefetch: Prefetch) -> type[bootsteps.StartStopStep]:
    """The step of Celery's consumer that tells `prefetch` whose count it raises."""

    class AttachPrefetch(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, parent: Any) -> None:
            prefetch.attach(parent.hub, parent.qos)

    return AttachPrefetch
