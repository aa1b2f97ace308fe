"""The engine thread, while the outbox is full."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, cast

from tests.waiting import wait_until
from worker.engine.plan import Plan
from worker.runner import End, Runner


class Scheduler:
    """Has always something to compute; notes what it was asked."""

    idle = False

    def __init__(self) -> None:
        self.plans = 0
        self.ended: list[str] = []

    def tidy(self) -> None: ...

    def expire(self, _now: float) -> Iterable[Any]:
        return []

    def plan(self, _now: float) -> Plan:
        self.plans += 1
        return Plan([], [])

    def end(self, job_id: str, *_: Any) -> list[Any]:
        self.ended.append(job_id)
        return []


class Engine:
    """Computes nothing."""

    def execute(self, _plan: Plan) -> Iterable[Any]:
        return []


def test_an_engine_whose_outbox_is_full_computes_nothing_and_still_obeys() -> None:
    scheduler, full, crashes = Scheduler(), threading.Event(), list[BaseException]()
    full.set()
    runner = Runner(cast(Any, Engine()), cast(Any, scheduler), lambda _: None, full.is_set, crashes.append)
    runner.start()
    runner.send(End("j", "cancelled"))

    wait_until(lambda: scheduler.ended == ["j"] or crashes, "the command is carried out")
    assert scheduler.plans == 0

    full.clear()
    wait_until(lambda: scheduler.plans > 0 or crashes, "the engine goes on")
    runner.stop(5.0)
    assert crashes == []
