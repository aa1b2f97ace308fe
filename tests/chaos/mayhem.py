"""Carries the faults out, on the main thread: what begins with one ends later, by a small agenda."""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from signal import SIGCONT, SIGSTOP, SIGTERM

from tests.chaos.plan import WORKER_FAULTS, Fault
from tests.scene import Server, Worker

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
#: Drain time, handing back, and a server that may be away meanwhile.
_STOP_SECONDS = 60.0


class Mayhem:
    """Does to a server and its workers what a plan says, and puts everything right again."""

    def __init__(self, server: Server, workers: list[Worker]) -> None:
        self._server, self._workers = server, workers
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        #: Workers that are about to be started again, or are frozen.
        self._away: set[str] = set()
        self._server_away = False
        #: What should not have happened.
        self.problems: list[str] = []
        #: What has been done.
        self.faults: Counter[str] = Counter()

    def carry_out(self, faults: Iterable[Fault], seconds: float) -> None:
        """One fault after another; returns when all is up again. None begins after so many seconds."""
        end = time.monotonic() + seconds
        for fault in faults:
            self._pass_time(time.monotonic() + fault.gap_seconds)
            if time.monotonic() > end:
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
            self.problems.append(f"{worker.name} ended by itself with exit code {worker.exit_code}")
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
                self._later(_POLL_SECONDS, lambda: self._restart_when_gone(worker, fault.seconds, time.monotonic()))
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
            if time.monotonic() - since > _STOP_SECONDS:
                self.problems.append(f"{worker.name} did not end within {_STOP_SECONDS:.0f} s of SIGTERM")
                worker.kill()
            self._later(_POLL_SECONDS, lambda: self._restart_when_gone(worker, seconds, since))
            return
        if worker.exit_code not in (0, -15):  # -15: it had not come as far as to handle signals
            self.problems.append(f"{worker.name} was stopped and ended with exit code {worker.exit_code}")
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
