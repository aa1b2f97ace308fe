"""One chaos run: a server, workers, producers, readers; faults while they work; then quiet, and the audit."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis

from celery_llama.celery_app import make_app
from celery_llama.client.client import Client
from celery_llama.settings import Settings
from tests.chaos.audit import Findings, audit, left_over
from tests.chaos.load import Producer, Reader, Tally
from tests.chaos.mayhem import Mayhem
from tests.chaos.plan import draw_faults
from tests.scene import Server, Worker, scene
from tests.waiting import wait_until

_PRODUCERS, _READERS = 3, 2
#: Short, so that a run sees many of them lapse.
_LEASE_SECONDS, _SWEEP_SECONDS, _TIMEOUT_SECONDS, _DRAIN_SECONDS = 4, 1, 2.0, 2.0
_SLOTS, _LOOKAHEAD = 4, 2
_STEP_SECONDS = 0.01
_QUIET_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is told."""

    seed: int
    #: No more faults after this time.
    seconds: float
    jobs: int
    faults: int
    workers: int
    #: A GGUF file, or `demo`.
    model: str
    folder: Path


@dataclass
class Report:
    """What came of it."""

    findings: Findings
    tally: Tally
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    #: Lines in the workers' logs that tell of what they went through.
    log_lines: Counter[str] = field(default_factory=Counter)


#: Lines of a worker's log that are counted in the report.
_LOG_LINES = (
    "has another owner now",
    "had lost its message",
    "handed back",
    "Redis takes events again",
    "could not be acknowledged",
    "could not be stored",
    "Couldn't ack",
    "Traceback",
    "Unrecoverable",
    "ResourceWarning",
)


class Chaos:
    """A run, from an empty folder to the audit. Main thread."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._server = Server(options.folder / "server")
        self.settings = Settings(
            redis_url=self._server.url,
            namespace="chaos",
            lease_seconds=_LEASE_SECONDS,
            sweep_seconds=_SWEEP_SECONDS,
            redis_timeout_seconds=_TIMEOUT_SECONDS,
        )
        self._workers = [self._worker(number) for number in range(options.workers)]
        self._problems: list[str] = []

    def _worker(self, number: int) -> Worker:
        options: dict[str, object] = {
            "slots": _SLOTS,
            "lookahead": _LOOKAHEAD,
            "ctx_per_slot": 512,
            "drain_seconds": _DRAIN_SECONDS,
            "stall_seconds": 60,
            "connect_seconds": 60,
            # Here workers die without a job's fault, over and over.
            "max_attempts": 20,
            "outbox_tokens": 2_000,
        }
        folder = self._options.folder
        return Worker(f"worker-{number}", self.settings, self._options.model, folder, options, _STEP_SECONDS)

    def run(self) -> Report:
        """All of it; what was started is stopped, whatever happens."""
        began = time.monotonic()
        tally, faults_over, over = Tally(), threading.Event(), threading.Event()
        with scene(self._server, self._workers):
            self._server.start()
            for worker in self._workers:
                worker.start()
            share = -(-self._options.jobs // _PRODUCERS)
            seeds = itertools.count(self._options.seed)
            producers = [Producer(self.settings, next(seeds), share, faults_over, tally) for _ in range(_PRODUCERS)]
            readers = [Reader(self.settings, next(seeds), over, tally) for _ in range(_READERS)]
            for thread in [*producers, *readers]:
                thread.start()
            self._wait(lambda: sum(producer.accepted for producer in producers) > 0, "the first job is accepted")
            mayhem = Mayhem(self._server, self._workers)
            faults = draw_faults(self._options.seed, self._options.faults, _LEASE_SECONDS, _TIMEOUT_SECONDS)
            mayhem.carry_out(faults, self._options.seconds)
            self._problems += mayhem.problems
            faults_over.set()
            self._wait(
                lambda: not any(producer.is_alive() for producer in producers),
                "the producers have had their jobs accepted",
                600.0,
            )
            with redis.Redis.from_url(self._server.url) as connection:
                self._wait(
                    lambda: not left_over(connection, self.settings.names), "all jobs have ended", _QUIET_SECONDS
                )
                self._problems += self._every_worker_works()
                over.set()
                for reader in readers:
                    reader.join(30)
                self._problems += self._nothing_is_held()
                self._problems += self._workers_stop()
                findings = audit(connection, self.settings.names, tally)
        findings.violations += self._problems
        logs = "".join(worker.log() for worker in self._workers)
        lines = Counter({line: logs.count(line) for line in _LOG_LINES if line in logs})
        return Report(findings, tally, mayhem.faults, time.monotonic() - began, lines)

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait, but let a run that gets stuck go on to its audit, which says where."""
        try:
            wait_until(condition, what, seconds)
        except TimeoutError as error:
            self._problems.append(str(error))

    # ---- afterwards

    def _every_worker_works(self) -> Iterator[str]:
        """A worker that has lived through it all takes jobs as before."""
        idle = {worker.name for worker in self._workers}
        with Client(settings=self.settings) as client:
            for _ in range(20):
                jobs = [client.submit(prompt="the", max_tokens=60) for _ in range(4 * _SLOTS * len(self._workers))]
                for job in jobs:
                    worked = next(event.worker for event in job.stream(timeout=60) if event.type == "started")
                    idle.discard(worked.rpartition("-")[0])
                if not idle:
                    break
        self._wait_quiet()
        yield from (f"{name} lives and takes no jobs" for name in idle)

    def _wait_quiet(self) -> None:
        with redis.Redis.from_url(self._server.url) as connection:
            self._wait(lambda: not left_over(connection, self.settings.names), "the last jobs have ended")

    def _nothing_is_held(self) -> Iterator[str]:
        """No worker keeps what it should have let go."""
        app = make_app(self.settings)
        stats = app.control.inspect(timeout=5.0, limit=len(self._workers)).stats() or {}
        app.close()
        if len(stats) != len(self._workers):
            yield f"{len(stats)} of {len(self._workers)} workers answer"
        for name, figures in stats.items():
            for figure in ("held", "active", "waiting"):
                if figures["pool"].get(figure):
                    yield f"{name}: {figure} is {figures['pool'][figure]}"

    def _workers_stop(self) -> Iterator[str]:
        for worker in self._workers:
            code = worker.stop() if worker.exit_code is None else worker.exit_code
            if code:
                yield f"{worker.name} ended with exit code {code}"
