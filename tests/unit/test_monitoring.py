"""When Celery's events are sent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_llama_worker.broker.monitoring import GATHER_SECONDS, GatherEvents


class Scene:
    """Celery's consumer with a hub and a dispatcher, as far as the step knows them."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.buffer: list[str] = []
        self.sent: list[list[str]] = []
        self.on_send_buffered: Callable[[], None] = lambda: None
        self.hub = self.event_dispatcher = self

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        self.timers.append((seconds, act))

    def flush(self) -> None:
        self.sent.append(self.buffer)
        self.buffer = []

    def say(self, *events: str) -> None:
        for event in events:
            self.buffer.append(event)
            self.on_send_buffered()

    def let_time_pass(self) -> None:
        due, self.timers = self.timers, []
        for _, act in due:
            act()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def step(scene: Scene) -> Any:
    step = GatherEvents(SimpleNamespace())
    step.start(scene)
    return step


@pytest.mark.usefixtures("step")
def test_events_of_a_moment_are_sent_together(scene: Scene) -> None:
    scene.say("received", "started")
    assert (scene.sent, [seconds for seconds, _ in scene.timers]) == ([], [GATHER_SECONDS])

    scene.let_time_pass()
    scene.say("succeeded")
    scene.let_time_pass()

    assert scene.sent == [["received", "started"], ["succeeded"]]


def test_a_consumer_that_stops_sends_its_last_events(scene: Scene, step: Any) -> None:
    scene.say("succeeded")

    step.stop(scene)

    assert scene.sent == [["succeeded"]]


def test_a_consumer_that_stops_before_it_has_started_has_nothing_to_send(scene: Scene) -> None:
    GatherEvents(SimpleNamespace()).stop(scene)

    assert scene.sent == []
