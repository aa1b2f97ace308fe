"""Producers and readers that go on whatever happens. Each is a thread with its own client and its own luck."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from celery_llama.client.client import Client
from celery_llama.protocol.errors import CeleryLlamaError, ServerUnreachable
from celery_llama.settings import Settings
from tests.waiting import wait_until

#: Jobs that one producer keeps open.
_OPEN_JOBS = 16
_WORDS = ["the", "and", "in", "an", "on", "at", "he", "re", "ing", "other", "hand", "then"]


@dataclass
class Tally:
    """What the producers were told, to be compared with what became of it."""

    #: Ids of jobs that were accepted.
    accepted: list[str] = field(default_factory=list)
    #: Submissions that met no server; the job may be there all the same.
    unsure: int = 0
    cancelled: int = 0
    #: Second submissions under a key that should have answered with the first's id, and did not.
    wrongly_doubled: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    #: Texts as a reader saw them arrive, by job and choice.
    read: dict[str, dict[int, str]] = field(default_factory=dict)
    #: What no producer or reader should meet.
    errors: list[str] = field(default_factory=list)


def random_job(random_: random.Random) -> tuple[str, dict[str, Any]]:
    """A job of some kind, and the kind's name."""
    words = " ".join(random_.choices(_WORDS, k=random_.randint(1, 12)))
    job: dict[str, Any] = {"max_tokens": random_.randint(1, 40), "ignore_eos": True, "seed": random_.randrange(1000)}
    kind = random_.choice(["short", "short", "short", "long", "long", "chat", "stop", "choices", "prompt", "penalties"])
    match kind:
        case "long":
            job |= {"max_tokens": random_.randint(100, 220)}
        case "chat":
            job |= {"messages": [{"role": "user", "content": words}]}
        case "stop":
            job |= {"stop": ["th", "qx"], "ignore_eos": False}
        case "choices":
            job |= {"n": random_.randint(2, 3)}
        case "prompt":
            words = words * 10
        case "penalties":
            job |= {"repeat_penalty": 1.1, "presence_penalty": 0.5, "logprobs": True}
    if "messages" not in job:
        job |= {"prompt": words}
    if random_.random() < 0.5:
        job |= {"temperature": 0.0}
    return kind, job | {"priority": random_.randrange(10)}


class Producer(threading.Thread):
    """Submits jobs until it has had its share accepted and is told that the faults are over."""

    def __init__(self, settings: Settings, seed: int, share: int, faults_over: threading.Event, tally: Tally) -> None:
        super().__init__(name=f"producer-{seed}", daemon=True)
        self._client = Client(settings=settings)
        self._random = random.Random(seed)
        self._share, self._faults_over, self._tally = share, faults_over, tally
        self._open: list[str] = []
        self.accepted = 0

    def run(self) -> None:
        """Submit, cancel some, ask for some twice; wait while enough of its jobs are open."""
        while self.accepted < self._share or not self._faults_over.is_set():
            try:
                self._submit_one()
                wait_until(self._has_room, f"{self.name} has jobs that end", 180)
            except ServerUnreachable:
                self._tally.unsure += 1
            except (CeleryLlamaError, TimeoutError) as error:
                self._tally.errors.append(f"{self.name}: {error!r}")
                return

    def _submit_one(self) -> None:
        kind, fields = random_job(self._random)
        luck = self._random.random()
        key = f"key-{self._random.getrandbits(64)}" if luck < 0.1 else None
        if key is not None:
            fields |= {"idempotency_key": key}
        handle = self._client.submit(**fields)
        self._tally.accepted.append(handle.id)
        self._tally.kinds[kind] += 1
        self._open.append(handle.id)
        self.accepted += 1
        if key is not None:
            again = self._client.submit(**fields).id
            if again != handle.id and self._client.job(handle.id).status().status != "failed":
                self._tally.wrongly_doubled.append(handle.id)
        elif luck < 0.2:
            victim = self._random.choice(self._open)
            self._client.job(victim).cancel()
            self._tally.cancelled += 1

    def _has_room(self) -> bool:
        if len(self._open) >= _OPEN_JOBS:
            try:
                self._open = [job for job in self._open if not self._client.job(job).status().ended]
            except ServerUnreachable:
                return False
        return len(self._open) < _OPEN_JOBS


class Reader(threading.Thread):
    """Follows one job after another live, and keeps what it was told."""

    def __init__(self, settings: Settings, seed: int, over: threading.Event, tally: Tally) -> None:
        super().__init__(name=f"reader-{seed}", daemon=True)
        self._client = Client(settings=settings)
        self._random = random.Random(seed)
        self._over, self._tally = over, tally

    def run(self) -> None:
        """Read the latest job from wherever it is to its end."""
        while not self._over.wait(0.05):
            if not self._tally.accepted:
                continue
            job_id = self._random.choice(self._tally.accepted[-10:])
            texts: dict[int, str] = {}
            try:
                last = 0
                for event in self._client.job(job_id).stream():
                    if event.seq != last + 1:
                        self._tally.errors.append(f"{self.name}: job {job_id}: event {event.seq} came after {last}")
                    last = event.seq
                    if event.type == "token":
                        texts[event.choice] = texts.get(event.choice, "") + event.text
                self._tally.read[job_id] = texts
            except ServerUnreachable:
                continue
            except CeleryLlamaError as error:
                self._tally.errors.append(f"{self.name}: job {job_id}: {error!r}")
