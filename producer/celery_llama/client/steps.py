"""The steps of which flows are made, and what the two clients share in performing them. Pure; any thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis

from celery_llama.ledger.pipeline import Call
from celery_llama.protocol.errors import ResultTimeout
from celery_llama.protocol.events import AnyEvent, Heartbeat

#: Without a message for this long, a reader subscribes anew and looks into the stream: the connection may be dead.
IDLE_SECONDS = 15.0
#: How long a reader that has had contact tries to get it back.
PATIENCE_SECONDS = 30.0
#: How long the server may take to confirm a subscription.
CONFIRMATION_SECONDS = 10.0
#: In place of a message.
MISSED = b""


@dataclass(frozen=True, slots=True)
class Publish:
    """Send the task message."""

    job_id: str
    body: dict[str, Any]
    priority: int


@dataclass(frozen=True, slots=True)
class TellWorkers:
    """Broadcast that a job's cancel flag was set."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Listen to this channel from now on, on a fresh subscription; replied to when the server has confirmed it."""

    channel: str


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for a message; the reply is None if none came, and `MISSED` if some may have been missed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Make these calls in one round trip; the reply has their answers in their order, errors among them."""

    calls: Sequence[Call]


#: An event among the steps is for the reader.
Step = Call | Together | Publish | TellWorkers | Subscribe | Listen | AnyEvent | Heartbeat
T = TypeVar("T")
Flow = Generator[Step, Any, T]


class Waiting:
    """How long a caller still waits, for the job and for the server, and when it is told that nothing has come.

    `heartbeat` is how many seconds without an event it takes. Raises ValueError if it is not more than 0.
    """

    def __init__(
        self,
        job_id: str,
        timeout: float | None,
        heartbeat: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if heartbeat is not None and not heartbeat > 0:
            raise ValueError("heartbeat is a number of seconds: more than 0")
        self._job_id, self._timeout, self._clock = job_id, timeout, clock
        self._heartbeat = math.inf if heartbeat is None else heartbeat
        self._began = self._shown = clock()
        self._seq = -1
        self._contact: float | None = None

    def listen(self, seq: int = 0) -> Listen:
        """The next wait, past event `seq`; raises ResultTimeout when the caller's time is over."""
        now = self._clock()
        left = math.inf if self._timeout is None else self._began + self._timeout - now
        if left <= 0:
            raise ResultTimeout(self._job_id, self._timeout or 0.0)
        if seq != self._seq:
            self._seq, self._shown = seq, now
        return Listen(max(0.0, min(left, IDLE_SECONDS - self._idle(now), self._shown + self._heartbeat - now)))

    def silent(self, message: bytes | None) -> bool:
        """Whether the caller is to be told that nothing has come; not if the connection may be dead."""
        now = self._clock()
        if message is not None or now - self._shown < self._heartbeat or self._idle(now) >= IDLE_SECONDS:
            return False
        self._shown = now
        return True

    def _idle(self, now: float) -> float:
        return 0.0 if self._contact is None else now - self._contact

    def reached(self) -> None:
        """Note that the server answered."""
        self._contact = self._clock()

    def lost(self, error: Exception) -> None:
        """Note that it did not; raises `error` if it never did, or has not for too long."""
        if self._contact is None or self._clock() - self._contact > PATIENCE_SECONDS + IDLE_SECONDS:
            raise error


def check_confirmation(message: dict[str, Any] | None) -> None:
    """Check the first message of a subscription; raises redis.TimeoutError."""
    if message is None or message["type"] != "subscribe":
        raise redis.TimeoutError("the server did not confirm the subscription")


def message_data(message: dict[str, Any] | None) -> bytes | None:
    """Take out what was published, as the reply to `Listen`.

    Anything but a message is a new confirmation: redis-py has reconnected, and messages may have been missed.
    """
    if message is None:
        return None
    return message["data"] if message["type"] == "message" else MISSED
