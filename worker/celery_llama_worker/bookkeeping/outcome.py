"""How an attempt ended, as far as Celery is concerned: what the publisher tells the pool. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from celery_llama.protocol.results import Result

#: `ended`: the job has a result. `dropped`: somebody else has the job. `handed_back`: somebody else shall have it.
#: `fenced`: the ledger has refused the attempt; whose the job is now, only a new claim can tell.
OutcomeKind = Literal["ended", "dropped", "handed_back", "fenced"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a delivery; `result` where the job has ended."""

    kind: OutcomeKind
    result: Result | None = None


DROPPED = Outcome("dropped")
HANDED_BACK = Outcome("handed_back")
FENCED = Outcome("fenced")
