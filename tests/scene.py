"""A server and workers as processes of their own, to be stopped, killed and frozen."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_llama.settings import Settings
from celery_llama_worker.embedded.ensure import find_binary
from celery_llama_worker.embedded.supervisor import HOST, server_command
from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]
END_SECONDS = 60.0


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A Valkey that keeps every write; its data outlives its restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start it, and return when it answers."""
        with (self.folder / "server.log").open("ab") as log:
            command = server_command(str(find_binary()), self.port, self.folder)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self.answers, "the server answers")

    def stop(self) -> None:
        """An orderly end: everything is written."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(END_SECONDS)
            self._process = None

    def freeze(self) -> None:
        """Keep every connection and answer none: what a dead network looks like from here."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on, with everything that has come in meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def answers(self) -> bool:
        """Whether it takes commands."""
        with self.connection() as connection:
            try:
                return bool(connection.ping())
            except redis.RedisError:
                return False

    def connection(self) -> redis.Redis:
        """A connection that does not try twice."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=10)

    def cut_connections(self) -> None:
        """Close all other clients' connections."""
        with self.connection() as connection:
            for kind in ("normal", "pubsub"):
                connection.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@dataclass
class Worker:
    """One worker process."""

    name: str
    settings: Settings
    model: Path | str
    folder: Path
    options: dict[str, object] = field(default_factory=dict)
    step_seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """What it writes to stderr, all its processes one after another."""
        return self.folder / f"{self.name}.log"

    def log(self) -> str:
        """What it has written so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> None:
        """Start the process; returns at once."""
        options: dict[str, object] = {
            "redis_url": self.settings.redis_url,
            "model": self.model,
            "worker_name": self.name,
            "threads": 1,
            **self.settings.model_dump(exclude={"redis_url"}),
            **self.options,
        }
        arguments = [
            part for option, value in options.items() for part in (f"--{option.replace('_', '-')}", str(value))
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FAULTY_STEP_SECONDS": str(self.step_seconds),
            "FAULTY_FOLDER": str(self.folder),
        }
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faulty_worker", "start", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=ROOT,
            )

    @property
    def pid(self) -> int:
        """The process, which must have been started."""
        assert self.process is not None
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        assert self.process is not None
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing if the process has ended."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Wait for the end; returns the exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, and wait for the end."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self.wait()

    def fail_next_decode(self, code: int | str) -> None:
        """Make the next decode call answer this code, or hang."""
        part = self.folder / f"part-{self.pid}"
        part.write_text(str(code))
        part.rename(self.folder / f"decode-{self.pid}")


@contextlib.contextmanager
def scene(server: Server, workers: list[Worker]) -> Iterator[None]:
    """Nothing of it is left running afterwards."""
    try:
        yield
    finally:
        for worker in workers:
            if worker.process is not None:
                worker.signal(signal.SIGKILL)
                worker.wait()
        server.stop()
