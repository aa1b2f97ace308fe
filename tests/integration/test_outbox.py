"""The outbox, while the server is away and when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_llama.ledger.replay import read_events
from celery_llama.ledger.scripts import execute
from celery_llama.settings import Settings
from celery_llama_worker.bookkeeping.outcome import Outcome
from celery_llama_worker.bookkeeping.publisher import Publisher
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.outputs import Began, Ended, Text
from celery_llama_worker.engine.plan import Sampled
from tests.scene import Server, scene
from tests.waiting import wait_until

BOUND = 50


class Scene:
    """A publisher with one job open, and a server to be taken away."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)
        self.server.start()
        settings = Settings(redis_url=self.server.url, namespace="outbox")
        self.ledger = settings.ledger
        self.outcomes: list[Outcome] = []
        self.crashes: list[BaseException] = []
        connection = redis.Redis.from_url(self.server.url, socket_timeout=0.2)
        self.publisher = Publisher(connection, self.ledger, lambda *_: None, BOUND, self.crashes.append)
        self.publisher.start()
        self.claim()

    def claim(self) -> None:
        """What admission does before the engine says anything."""
        with self.server.connection() as connection:
            claim = execute(connection, self.ledger.claim("j", "me", "{}", 5))
        self.attempt = claim.attempt
        transcript = Transcript(
            "j", claim.attempt, attempts=1, worker="me", model="tiny", piece=lambda token: b"%d " % token
        )
        self.publisher.open(transcript, self.outcomes.append)
        self.publisher.put([Began("j", claim.attempt, 0)])

    def say(self, first: int, last: int) -> None:
        """What the engine says, a step at a time."""
        for number in range(first, last):
            self.publisher.put([Text("j", self.attempt, 0, f"{number} ", [Sampled(number)], None)])

    def end(self) -> None:
        self.publisher.put([Ended("j", self.attempt, "done")])

    def full(self) -> bool:
        """Whether the engine shall pause."""
        return self.publisher.full

    def text(self) -> str:
        """What a reader has been told."""
        with self.server.connection() as connection:
            return "".join(event.text for event in read_events(connection, self.ledger.names, "j"))


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Scene]:
    outbox = Scene(tmp_path)
    with scene(outbox.server, []):
        yield outbox
        outbox.publisher.stop(5.0)
        assert outbox.crashes == []


def numbers(last: int) -> str:
    return "".join(f"{number} " for number in range(last))


def test_what_was_said_while_the_server_was_away_is_written_in_order(outbox: Scene) -> None:
    outbox.say(0, 10)
    wait_until(lambda: outbox.text() == numbers(10), "the first tokens are written")
    outbox.server.stop()
    outbox.say(10, 200)
    outbox.end()
    assert outbox.outcomes == []

    outbox.server.start()

    (outcome,) = wait_until(lambda: outbox.outcomes, "the end is written")
    assert outcome.result is not None
    assert outbox.text() == outcome.result.text == numbers(200)


def test_the_engine_pauses_when_too_much_waits_and_goes_on_when_it_is_written(outbox: Scene) -> None:
    outbox.server.stop()
    outbox.say(0, BOUND)
    assert not outbox.full()
    outbox.say(BOUND, BOUND + 1)
    assert outbox.full()

    outbox.server.start()

    wait_until(lambda: not outbox.full(), "the outbox has room")
    assert wait_until(outbox.text, "the tokens are written") == numbers(BOUND + 1)


def test_a_stalled_server_carries_out_repeated_calls_once(outbox: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """The call was given up and sent again; then both arrive."""
    outbox.say(0, 10)
    wait_until(lambda: outbox.text() == numbers(10), "the first tokens are written")
    outbox.server.freeze()
    outbox.say(10, 20)
    outbox.end()
    wait_until(lambda: "does not take events" in caplog.text, "a call is given up")
    outbox.server.thaw()

    wait_until(lambda: outbox.outcomes, "the end is written")
    assert outbox.text() == numbers(20)


def test_a_publisher_that_stops_gives_up_on_a_server_that_stays_away(outbox: Scene) -> None:
    outbox.server.stop()
    outbox.say(0, 10)

    outbox.publisher.stop(0.1)

    assert not outbox.publisher._thread.is_alive()
