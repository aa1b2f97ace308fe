"""One chaos run: a server, workers, producers, readers; faults while they work; then quiet, and the audit."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM

import redis

from producer.celery_app import make_app
from producer.client import Client
from producer.settings import Settings
from tests.chaos.audit import Findings, audit, left_over
from tests.chaos.load import Producer, Reader, Tally
from tests.chaos.plan import WORKER_FAULTS, Fault, draw_faults
from tests.scene import Server, Worker, scene
from tests.waiting import wait_until

logger = logging.getLogger(__name__)

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
    """Carries the faults out, on the main thread: what begins with one ends later, by a small agenda."""

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
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        #: Workers that are about to be started again, or are frozen.
        self._away: set[str] = set()
        self._server_away = False
        self._problems: list[str] = []
        self.faults: Counter[str] = Counter()

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
            self._carry_out_faults(began)
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
        return Report(findings, tally, self.faults, time.monotonic() - began, lines)

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait, but let a run that gets stuck go on to its audit, which says where."""
        try:
            wait_until(condition, what, seconds)
        except TimeoutError as error:
            self._problems.append(str(error))

    # ---- faults

    def _carry_out_faults(self, began: float) -> None:
        options = self._options
        for fault in draw_faults(options.seed, options.faults, _LEASE_SECONDS, _TIMEOUT_SECONDS):
            self._pass_time(time.monotonic() + fault.gap_seconds)
            if time.monotonic() - began > options.seconds:
                break
            self._carry_out(fault)
        while self._agenda:
            self._pass_time(self._agenda[0][0])

    def _pass_time(self, until: float) -> None:
        while True:
            now = time.monotonic()
            if self._agenda and self._agenda[0][0] <= now:
                heapq.heappop(self._agenda)[2]()
                continue
            if now >= until:
                return
            time.sleep(min([until, *(at for at, _, _ in self._agenda[:1])]) - now)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + seconds, next(self._number), action))

    def _carry_out(self, fault: Fault) -> None:
        wanted = self._workers[fault.worker % len(self._workers)]
        while not (self._present(wanted) if fault.kind in WORKER_FAULTS else not self._server_away):
            self._pass_time(self._agenda[0][0])  # it is on its way back
        worker = self._present(wanted) or wanted
        if fault.kind in WORKER_FAULTS and worker.exit_code is not None:
            self._problems.append(f"{worker.name} ended by itself with exit code {worker.exit_code}")
            worker.start()
            return
        where = worker.name if fault.kind in WORKER_FAULTS else "server"
        logger.info("%s %s, %.1f s", fault.kind, where, fault.seconds)
        self.faults[fault.kind] += 1
        match fault.kind:
            case "kill":
                worker.kill()
                self._restart_later(worker, fault.seconds)
            case "stop":
                worker.signal(SIGTERM)
                self._away.add(worker.name)
                self._later(0.2, lambda: self._restart_when_gone(worker, fault.seconds, time.monotonic()))
            case "freeze":
                worker.signal(SIGSTOP)
                self._away.add(worker.name)
                self._later(fault.seconds, lambda: self._thaw(worker))
            case "decode":
                worker.fail_next_decode(fault.code)
            case "cut":
                self._server.cut_connections()
            case "restart":
                self._server.stop()
                self._server_away = True
                self._later(fault.seconds, self._start_server)
            case "stall":
                self._server.freeze()
                self._server_away = True
                self._later(fault.seconds, self._thaw_server)

    def _present(self, wanted: Worker) -> Worker | None:
        """This worker, or another if it is away."""
        return next((worker for worker in (wanted, *self._workers) if worker.name not in self._away), None)

    def _restart_later(self, worker: Worker, seconds: float) -> None:
        def start() -> None:
            worker.start()
            self._away.discard(worker.name)

        self._away.add(worker.name)
        self._later(seconds, start)

    def _restart_when_gone(self, worker: Worker, seconds: float, since: float) -> None:
        if worker.exit_code is None:
            if time.monotonic() - since > 60:
                self._problems.append(f"{worker.name} did not end within 60 s of SIGTERM")
                worker.kill()
            self._later(0.2, lambda: self._restart_when_gone(worker, seconds, since))
            return
        if worker.exit_code not in (0, -15):  # -15: it had not come as far as to handle signals
            self._problems.append(f"{worker.name} was stopped and ended with exit code {worker.exit_code}")
        self._restart_later(worker, seconds)

    def _thaw(self, worker: Worker) -> None:
        worker.signal(SIGCONT)
        self._away.discard(worker.name)

    def _start_server(self) -> None:
        self._server.start()
        self._server_away = False

    def _thaw_server(self) -> None:
        self._server.thaw()
        self._server_away = False

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
