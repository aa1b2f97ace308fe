"""AsyncEventStream: a job's events as asyncio's loops and timeouts want them. For one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

from celery_llama.protocol.events import Event

E = TypeVar("E", bound=Event)


class AsyncEventStream(AsyncIterator[E]):
    """A job's events. Waiting for one may be cancelled, as by a timeout: the next wait goes on where it was.

    An async generator is at its end once a cancellation has gone through it. So each event is waited for by a task of
    its own, which outlives whoever waits for that task.
    """

    def __init__(self, events: AsyncGenerator[E, None]) -> None:
        self._events = events
        self._coming: asyncio.Task[E] | None = None
        self._awaited = False

    async def __anext__(self) -> E:
        if self._awaited:
            raise RuntimeError("somebody else waits for the stream's next event")
        if self._coming is None:
            self._coming = asyncio.create_task(anext(self._events))
        self._awaited = True
        try:
            await asyncio.wait([self._coming])
            coming, self._coming = self._coming, None
        finally:
            self._awaited = False
        return coming.result()

    async def aclose(self) -> None:
        """Leave the stream before its end, and give its connection back."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await self._events.aclose()

    def __del__(self) -> None:
        """Leave the stream with whoever has dropped it."""
        if self._coming is not None and not (loop := self._coming.get_loop()).is_closed():
            loop.call_soon_threadsafe(_forget, self._coming)


def _forget(task: asyncio.Task[Any]) -> None:
    task.cancel()
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
