"""What every claimed job is in the engine, whatever its kind. Owned by the scheduler, on the engine thread. No I/O."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TypeVar

_arrivals = itertools.count()


@dataclass(slots=True, eq=False)
class JobAttempt:
    """A claimed job in the engine: one attempt of a worker at it."""

    job_id: str
    number: int
    #: 0 is served first.
    priority: int
    #: Seconds from its first call until the attempt ends with what it has.
    timeout_seconds: float
    #: Set when it first gets into a call (monotonic seconds).
    deadline: float = field(default=float("inf"), kw_only=True)
    started: bool = field(default=False, kw_only=True)
    arrival: int = field(default_factory=lambda: next(_arrivals), kw_only=True)

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first: the more urgent, then the earlier."""
        return self.priority, self.arrival


A = TypeVar("A", bound=JobAttempt)
#: Of what only makes attempts, and of what only takes them.
A_co = TypeVar("A_co", bound=JobAttempt, covariant=True)
A_contra = TypeVar("A_contra", bound=JobAttempt, contravariant=True)


class Attempts(dict[str, A]):
    """The attempts that are here, by job."""

    def late(self, now: float) -> list[str]:
        """The jobs whose time is up (monotonic seconds)."""
        return [attempt.job_id for attempt in self.values() if attempt.deadline <= now]
