"""The embedded server's supervisor: a small process of its own that keeps one Redis-compatible server running.

`embedded.ensure` starts it with `python -m celery_llama_worker.embedded.supervisor BINARY PORT FOLDER`; that command
returns once the server answers. What stays behind is in a session of its own, so it outlives the worker, however that
ends, and starts the server again if it dies. SIGTERM ends both, after the server has written its append-only file.
Imports only the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Literal

HOST = "127.0.0.1"
READY = "ready"
#: A server that ended sooner than this did not really run.
QUICK_SECONDS = 2.0
#: After so many quick ends in a row, the supervisor gives up.
MAX_QUICK_ENDS = 5

Listener = Literal["free", "redis", "other"]


def probe(port: int) -> Listener:
    """Say what listens on a port of this machine. A server that loads its data, or wants a password, is one too."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
    except ConnectionRefusedError:
        return "free"
    except OSError:
        return "other"
    return "redis" if reply.startswith((b"+PONG", b"-LOADING", b"-NOAUTH")) else "other"


def lock_pid_file(folder: Path) -> IO[str] | None:
    """Lock the folder's pid file for as long as the returned file is open; None if a supervisor has it."""
    file = (folder / "pid").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def server_command(binary: str, port: int, folder: Path) -> list[str]:
    """How the server is called: it keeps every write, evicts nothing, and listens to this machine only."""
    options = {
        "bind": HOST,
        "port": str(port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        # A reader that stalls for a while is cut off later than by default; it can replay from the stream either way.
        "client-output-buffer-limit": "pubsub 64mb 16mb 60",
    }
    return [binary, *(part for name, value in options.items() for part in (f"--{name}", value))]


class Supervisor:
    """Keeps the server running until it is told to stop. Main thread; the signal handler runs there too."""

    def __init__(self, command: list[str], port: int) -> None:
        self._command = command
        self._port = port
        self._server: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def run(self, report: Callable[[str], None]) -> int:
        """Start the server, report once whether it answers, then stay with it; returns the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        server = self._start()
        while server.poll() is None and probe(self._port) != "redis":
            time.sleep(0.02)
        if server.poll() is not None:
            report(f"ended at once with exit code {server.returncode}")
            return 1
        report(READY)
        quick_ends = 0
        while True:
            began = time.monotonic()
            server.wait()
            if self._stopping:
                return 0
            quick_ends = quick_ends + 1 if time.monotonic() - began < QUICK_SECONDS else 0
            print(f"supervisor: the server ended with exit code {server.returncode}", flush=True)
            if quick_ends == MAX_QUICK_ENDS:
                return 1
            server = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._server = server = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        if self._stopping:  # the signal came while the process was being made
            server.terminate()
        return server

    def _stop(self, _signum: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.terminate()


def detach(log: Path) -> None:
    """Leave the caller's session, terminal and streams; what is printed goes into the log."""
    os.setsid()
    with Path(os.devnull).open() as nothing, log.open("a") as output:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())


def supervise(binary: str, port: int, folder: Path, report: Callable[[str], None]) -> int:
    """Become the supervisor of a folder, unless it has one."""
    detach(folder / "server.log")
    pid_file = lock_pid_file(folder)
    if pid_file is None:
        report(f"{folder} belongs to a server that runs already")
        return 1
    with pid_file:
        pid_file.truncate(0)
        pid_file.write(str(os.getpid()))
        pid_file.flush()
        return Supervisor(server_command(binary, port, folder), port).run(report)


def main() -> int:
    """Start a supervisor, and return when its server answers or has failed to."""
    binary, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)

        def report(line: str) -> None:
            with contextlib.suppress(BrokenPipeError):  # whoever asked has gone; the server is wanted all the same
                os.write(writer, line.encode())
            os.close(writer)

        return supervise(binary, port, folder, report)
    os.close(writer)
    with os.fdopen(reader) as lines:
        outcome = lines.read()
    if outcome != READY:
        print(outcome or "ended at once", file=sys.stderr)
    return 0 if outcome == READY else 1


if __name__ == "__main__":
    sys.exit(main())
