"""Two repairs of kombu's Redis transport, for the worker process only. Installed before the application connects.

kombu 5.7.0: when the server goes away while a late-acknowledged task runs, the channel outlives the connection's
client; the restore or the acknowledgement that follows ends in AttributeError("'NoneType' object has no attribute
'hostname'"), and Celery exits with "Unrecoverable error" (the stack of kombu issues 582 and 970). The channel here
remembers how it was connected.

And: a message that could not be acknowledged, because Redis was away for a moment, keeps its place among those that the
worker may hold for as long as the channel lives, though nobody acknowledges it again. A worker that has met as many of
these as it has places lives and consumes nothing. Here the place is free at once; the message comes back when its lease
lapses, and its job has ended by then.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kombu.transport
from kombu.transport import redis as kombu_redis


class QoS(kombu_redis.QoS):  # type: ignore[misc]
    """What the worker holds; what could not be acknowledged or put back is not held any more."""

    def let_go(self, delivery_tag: str) -> None:
        """Hold the message no longer, and tell Redis nothing: it is delivered again when its lease lapses."""
        self._quick_ack(delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Raises what Redis raises."""
        try:
            super().ack(delivery_tag)
        finally:
            self.let_go(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Raises what Redis raises."""
        try:
            super().reject(delivery_tag, requeue=requeue)
        finally:
            self.let_go(delivery_tag)


class Channel(kombu_redis.Channel):  # type: ignore[misc]
    """A channel that remembers how it was connected."""

    QoS = QoS
    connection: Any

    def __init__(self, connection: Any, **options: Any) -> None:
        self._connected_with = connection.client
        super().__init__(connection, **options)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.connection is not None and self.connection.client is not None:
            return super()._connparams(asynchronous)  # type: ignore[no-any-return]
        gone = self.connection
        self.connection = SimpleNamespace(client=self._connected_with, default_port=kombu_redis.DEFAULT_PORT)
        try:
            return super()._connparams(asynchronous)  # type: ignore[no-any-return]
        finally:
            self.connection = gone


class Transport(kombu_redis.Transport):  # type: ignore[misc]
    """The transport of `redis://`, `rediss://` and `unix://`."""

    Channel = Channel


def install() -> None:
    """Let kombu's names for Redis mean the repaired transports; URLs keep their look, for Flower's sake."""
    kombu.transport.TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
