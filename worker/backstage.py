"""Backstage: everything behind the pool, started and stopped in one place and in order. Built by `worker.assembly`."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from worker.admission import Admission, Ender
from worker.delivery import Deliveries, Delivery
from worker.guests import Guests
from worker.keeper import Keeper
from worker.outcome import Outcome
from worker.publisher import Publisher
from worker.runner import Runner
from worker.tasks import Outcomes

_WRITE_SECONDS = 5.0


class Backstage:
    """The pool's way to the threads; its methods may be called from any thread."""

    def __init__(
        self,
        *,
        admission: Admission,
        runner: Runner,
        publisher: Publisher,
        keeper: Keeper,
        outcomes: Outcomes,
        deliveries: Deliveries,
        guests: Guests,
        drain_seconds: float,
        description: dict[str, Any],
    ) -> None:
        self.drain_seconds = drain_seconds
        self.deliveries = deliveries
        self.guests = guests
        self._admission = admission
        self._runner = runner
        self._publisher = publisher
        self._keeper = keeper
        self._outcomes = outcomes
        self._description = description
        self._rate = _Rate()

    def start(self) -> None:
        """Take the lease, then begin to work; raises ServerUnreachable."""
        self._keeper.start()
        self._publisher.start()
        self._runner.start()

    def stop(self) -> None:
        """The reverse: nothing is claimed, decoded or said any more, then the lease goes."""
        self._admission.stop()
        self._runner.stop()
        self._publisher.stop(_WRITE_SECONDS)
        self._keeper.stop()

    def admit(self, delivery: Delivery, pool: Ender) -> None:
        """Claim and prepare the job, off the hub thread."""
        self._admission.admit(delivery, pool)

    def cancel(self, job_id: str) -> None:
        """Ask for the job's end, off the hub thread."""
        self._admission.cancel(job_id)

    def told(self, job_id: str) -> None:
        """Note in the ledger that Celery knows how the job has ended, off the hub thread."""
        self._admission.told(job_id)

    def hand_back(self) -> None:
        """End every attempt so that others may take the jobs at once."""
        self._admission.hand_back()

    def finish_with(self, outcome: Outcome) -> contextlib.AbstractContextManager[None]:
        """Context in which the task's function finds this outcome."""
        return self._outcomes.finish_with(outcome)

    def info(self) -> dict[str, Any]:
        """Figures for `inspect stats` and Flower's Pool tab."""
        counters = self._runner.counters
        return {
            **self._description,
            "active": counters.active,
            "waiting": counters.waiting,
            "cells-used": counters.cells_used,
            "tokens-per-second": round(self._rate.since_last(counters.generated_tokens), 1),
            "generated-tokens": counters.generated_tokens,
            "prompt-tokens-read": counters.read_tokens,
            "prompt-tokens-copied": counters.copied_tokens,
            "set-aside": counters.set_aside,
            "steps": counters.steps,
            "largest-batch": counters.largest_batch,
            "full-batches": counters.full_batches,
        }


class _Rate:
    """Tokens per second between two looks."""

    def __init__(self) -> None:
        self._at, self._tokens, self._rate = time.monotonic(), 0, 0.0

    def since_last(self, tokens: int) -> float:
        now = time.monotonic()
        if now - self._at >= 1.0:
            self._rate = (tokens - self._tokens) / (now - self._at)
            self._at, self._tokens = now, tokens
        return self._rate
