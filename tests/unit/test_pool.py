"""The pool, driven by hand: what becomes of a delivery, whatever order its worker's threads and the broker act in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from celery_llama.protocol.results import Choice, Result
from celery_llama_worker.bookkeeping.outcome import DROPPED, FENCED, HANDED_BACK, Outcome
from celery_llama_worker.broker.delivery import Deliveries, Delivery
from celery_llama_worker.broker.pool import EnginePool, PoolParts
from celery_llama_worker.broker.prefetch import Prefetch
from celery_llama_worker.broker.tasks import Outcomes

COMPLETED = Outcome("ended", Result(id="j", status="completed", choices=[Choice(text="text")]))
CANCELLED = Outcome("ended", Result(id="j", status="cancelled"))
TIMED_OUT = Outcome("ended", Result(id="j", status="incomplete", choices=[Choice(finish_reason="timeout")]))


class Hub:
    """Celery's event loop, which calls back in whatever order it likes; here when told to."""

    def __init__(self) -> None:
        self.on_tick: set[Callable[[], None]] = set()
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def run(self) -> None:
        """One round, the latest first."""
        while self.soon:
            self.soon.pop()()


@dataclass(eq=False)
class Message:
    """What a Celery request knows of its message, and what was done to it."""

    tag: str
    done: list[str] = field(default_factory=list)
    message: Any = None

    def __post_init__(self) -> None:
        self.message = SimpleNamespace(delivery_tag=self.tag)
        self.id = "j"

    def on_accepted(self, _pid: int, _at: float) -> None:
        self.done.append("started")

    def on_success(self, answer: tuple[Any, Any, float]) -> None:
        self.done.append(f"succeeded: {answer[1]}")

    def let_go(self) -> None:
        self.done.append("let go")

    def acknowledge(self) -> None:
        self.done.append("acknowledged")

    def reject(self, requeue: bool) -> None:
        self.done.append("requeued" if requeue else "rejected")


class Admission:
    """The ledger's side: notes what it is asked."""

    def __init__(self) -> None:
        self.admitted: list[Delivery] = []
        self.acknowledged: list[str] = []

    def admit(self, delivery: Delivery, pool: EnginePool) -> None:
        self.admitted.append(delivery)

    def cancel(self, job_id: str) -> None:
        raise NotImplementedError

    def acknowledge(self, job_id: str) -> None:
        self.acknowledged.append(job_id)

    def hand_back(self) -> None:
        raise NotImplementedError


class Stage:
    """A pool with everything around it played by hand."""

    def __init__(self) -> None:
        self.admission, self.hub = Admission(), Hub()
        parts = PoolParts(
            self.admission, Outcomes(), Deliveries(), Prefetch(places=1, most_extra=0), dict, drain_seconds=0.0
        )
        pool_class = type("Pool", (EnginePool,), {"parts": parts})
        app = SimpleNamespace(tasks={"task": SimpleNamespace(engine_task=True)})
        self.pool: EnginePool = pool_class(4, app=app)
        self.pool.register_with_event_loop(self.hub)
        self.fails: Exception | None = None
        self.may_finish = threading.Event()
        self.may_finish.set()

    def tracer(self, *_arguments: Any) -> tuple[int, str, float]:
        assert self.may_finish.wait(30)
        if self.fails is not None:
            raise self.fails
        return 0, "value", 0.1

    def deliver(self, tag: str) -> Message:
        message = Message(tag)
        self.pool.on_apply(
            self.tracer,
            ("task", "j", {}, b"", "", ""),
            {},
            correlation_id="j",
            accept_callback=message.on_accepted,
            callback=message.on_success,
        )
        return message

    @property
    def delivery(self) -> Delivery:
        return self.admission.admitted[-1]

    def claim(self) -> None:
        """What admission does when the ledger gives it the job."""
        self.delivery.claimed = True
        self.pool.accepted(self.delivery)

    def end(self, outcome: Outcome) -> None:
        self.pool.ended(self.delivery, outcome)
        self.settle()

    def settle(self) -> None:
        """Let hub and finishers work until both have nothing left."""
        self.hub.run()
        self.pool._finishers.submit(lambda: None).result()
        self.pool._finishers.shutdown()
        self.hub.run()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_job_that_has_ended_is_acknowledged_and_forgotten(stage: Stage) -> None:
    message = stage.deliver("tag")
    stage.claim()
    stage.end(COMPLETED)

    assert message.done == ["started", "succeeded: completed, 0 tokens"]
    assert not stage.pool.parts.deliveries
    assert stage.admission.acknowledged == ["j"]


def test_a_job_starts_before_it_ends_whatever_order_the_hub_calls_back_in(stage: Stage) -> None:
    message = stage.deliver("tag")
    stage.claim()
    stage.pool.ended(stage.delivery, DROPPED)
    stage.settle()

    assert message.done[0] == "started"


def test_a_callback_of_celerys_that_fails_does_not_end_the_worker(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    message = stage.deliver("tag")
    stage.delivery.accept_callback = fail
    stage.claim()
    stage.end(COMPLETED)

    assert message.done == ["succeeded: completed, 0 tokens"]
    assert "ZeroDivisionError" in caplog.text


def test_what_the_hub_forgets_is_done_at_its_next_tick(stage: Stage) -> None:
    message = stage.deliver("tag")
    stage.claim()
    stage.hub.soon.clear()

    for tick in stage.hub.on_tick:
        tick()

    assert message.done == ["started"]


def test_a_job_that_the_ledger_refuses_is_claimed_again_before_its_message_goes(stage: Stage) -> None:
    """It may be this worker's again: the message that it holds can be the only one there is."""
    message = stage.deliver("tag")
    stage.claim()
    stage.pool.ended(stage.delivery, FENCED)
    stage.hub.run()

    assert len(stage.admission.admitted) == 2
    assert message.done == ["started"]

    stage.end(DROPPED)
    assert message.done == ["started", "let go"]


def test_a_message_that_comes_while_the_job_runs_is_adopted(stage: Stage) -> None:
    first = stage.deliver("tag-1")
    stage.claim()
    stage.hub.run()
    second = stage.deliver("tag-2")

    assert len(stage.admission.admitted) == 1
    assert second.done == ["started"]
    assert stage.pool.parts.deliveries.in_work() == (["j"], ["tag-1", "tag-2"])
    assert first.done == ["started"]


def test_what_an_adopted_message_is_about_is_asked_of_the_ledger(stage: Stage) -> None:
    """The job may have ended just before the message came, and the message may be its replay."""
    first = stage.deliver("tag-1")
    stage.claim()
    second = stage.deliver("tag-2")
    stage.pool.ended(stage.delivery, COMPLETED)
    stage.hub.run()

    assert len(stage.admission.admitted) == 2
    assert not stage.delivery.claimed

    stage.end(COMPLETED)
    assert second.done == ["started", "succeeded: completed, 0 tokens"]
    assert first.done[-1] == "acknowledged"


def test_a_message_that_comes_while_the_result_is_stored_is_a_delivery_of_its_own(stage: Stage) -> None:
    first = stage.deliver("tag-1")
    stage.claim()
    stage.may_finish.clear()
    stage.pool.ended(stage.delivery, COMPLETED)
    stage.hub.run()
    stage.deliver("tag-2")
    stage.may_finish.set()
    assert len(stage.admission.admitted) == 1, "the ledger would say that nobody has told Celery"
    stage.settle()

    assert first.done[-1] == "succeeded: completed, 0 tokens"
    assert stage.admission.acknowledged == ["j"]
    assert len(stage.admission.admitted) == 2
    assert stage.pool.parts.deliveries["j"] is stage.delivery
    assert stage.pool.parts.deliveries.in_work() == ([], ["tag-2"]), "Celery forgets the job; the keeper must not"


def test_a_job_whose_result_celery_cannot_store_keeps_its_message(stage: Stage) -> None:
    message = stage.deliver("tag")
    stage.claim()
    stage.fails = ConnectionError()
    stage.end(COMPLETED)

    assert message.done == ["started", "let go"], "put back at once, it would go round and round"
    assert stage.admission.acknowledged == []
    assert not stage.pool.parts.deliveries


def test_a_job_that_is_handed_back_goes_to_the_queue(stage: Stage) -> None:
    message = stage.deliver("tag")
    stage.end(HANDED_BACK)

    assert message.done == ["requeued"]


def test_a_job_that_waits_for_its_claim_is_not_vouched_for_but_its_message_is(stage: Stage) -> None:
    stage.deliver("tag")

    assert stage.pool.parts.deliveries.in_work() == ([], ["tag"])


def test_a_message_that_could_not_be_acknowledged_holds_no_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full server refuses what Celery stores at a revocation, and the connection stays."""

    def refuse(_message: Message, _pool: Any) -> None:
        raise ConnectionError("out of memory")

    monkeypatch.setattr(Message, "conclude_revoked", refuse, raising=False)
    first = stage.deliver("tag-1")
    stage.claim()
    second = stage.deliver("tag-2")
    stage.pool.ended(stage.delivery, CANCELLED)
    stage.hub.run()
    stage.end(CANCELLED)

    assert second.done == ["started", "let go"]
    assert first.done[-1] == "let go"
    assert not stage.pool.parts.deliveries
    assert "out of memory" in caplog.text


@pytest.mark.parametrize("late_seconds", [-1.0, 1.0])
def test_whether_the_hard_time_limit_has_ended_a_job_is_decided_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, late_seconds: float
) -> None:
    """The limit may pass while the result is stored, and Celery would hear of two ends."""
    now = 100.0
    monkeypatch.setattr("celery_llama_worker.broker.delivery.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Message, "on_timeout", lambda message, *_: message.done.append("timed out"), raising=False)

    def slow_tracer(*_arguments: Any) -> tuple[int, str, float]:
        nonlocal now
        now += 5.0
        return 0, "value", 5.0

    monkeypatch.setattr(stage, "tracer", slow_tracer)
    message = stage.deliver("tag")
    stage.delivery.hard_limit_seconds = 10.0
    stage.claim()
    stage.hub.run()
    now += 10.0 + late_seconds

    stage.end(TIMED_OUT)

    assert message.done == ["started", "timed out" if late_seconds > 0 else "succeeded: incomplete, 0 tokens"]
