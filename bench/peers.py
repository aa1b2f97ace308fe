"""The peers: llama-cpp-python's `Llama` behind Celery, and llama-server. `Llama` alone is in `child.py`."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.stage import free_port, process, wait_for
from bench.work import Work


@dataclass
class BehindCelery:
    """A worker of Celery's solo pool that has the model loaded."""

    child: subprocess.Popen[bytes]
    #: `bench.solo_app`'s.
    task: Any

    def run(self, work: Work) -> int:
        """All jobs into the queue, then all results; returns how many tokens came."""
        waiting = [self.task.delay(list(prompt), work.max_tokens) for prompt in work.prompts]
        return sum(result.get(timeout=600)["usage"]["completion_tokens"] for result in waiting)


@contextmanager
def behind_celery(url: str, model: Path, ctx: int, threads: int) -> Iterator[BehindCelery]:
    """`llama_cpp.Llama` behind Celery as it comes, one job after another."""
    environment = {"BENCH_URL": url, "BENCH_MODEL": str(model), "BENCH_CTX": str(ctx), "BENCH_THREADS": str(threads)}
    command = [sys.executable, "-m", "celery", "-A", "bench.solo_app", "worker", "--pool", "solo", "-l", "warning"]
    from bench.solo_app import app, generate

    app.conf.update(broker_url=url, result_backend=url)
    with tempfile.TemporaryDirectory(prefix="bench-solo-") as folder:
        with process(command, Path(folder) / "log", environment) as child:
            found = BehindCelery(child, generate)
            found.run(Work([[1, 2, 3]], 2))
            yield found
        app.close()


def find_llama_server(given: str | None) -> list[str] | None:
    """How to start llama-server: as given, from the path, or from the wheel; None if there is none."""
    if given:
        return shlex.split(given)
    if binary := shutil.which("llama-server"):
        return [binary]
    if importlib.util.find_spec("xllamacpp"):
        return [sys.executable, str(Path(__file__).with_name("llama_server.py"))]
    return None


@dataclass
class LlamaServer:
    """A running llama-server."""

    child: subprocess.Popen[bytes]
    url: str
    slots: int

    def run(self, work: Work, *, in_flight: int = 0) -> int:
        """All jobs, so many of them in flight at any time, by default twice as many as there are slots; the tokens."""
        answers = asyncio.run(self._all(work, in_flight or 2 * self.slots))
        return sum(answer["tokens_predicted"] for answer in answers)

    async def _all(self, work: Work, in_flight: int) -> list[dict[str, Any]]:
        gate = asyncio.Semaphore(in_flight)
        limits = httpx.Limits(max_connections=in_flight)

        async def one(prompt: list[int]) -> dict[str, Any]:
            async with gate:
                body = {"prompt": prompt, "n_predict": work.max_tokens, "temperature": 0.0}
                answer = await client.post(f"{self.url}/completion", json=body)
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
            return found

        async with httpx.AsyncClient(timeout=600, limits=limits, trust_env=False) as client:
            return await asyncio.gather(*(one(list(prompt)) for prompt in work.prompts))


@contextmanager
def llama_server(command: list[str], model: Path, slots: int, ctx_per_slot: int, threads: int) -> Iterator[LlamaServer]:
    """A llama-server with so many slots of so many cells each."""
    port = free_port()
    options = ["-m", model, "--host", "127.0.0.1", "--port", port, "-np", slots, "-c", slots * ctx_per_slot]
    options += ["-t", threads]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="bench-llama-") as folder:
        log = Path(folder) / "log"
        with process([*command, *map(str, options)], log) as child:
            wait_for(lambda: _healthy(url), child, "llama-server", log)
            yield LlamaServer(child, url, slots)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
