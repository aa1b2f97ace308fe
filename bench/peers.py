"""The peer: llama-server, driven by as many requests in flight as it likes best."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.race import Side
from bench.setting import Setting
from bench.stage import free_port, process, wait_for
from bench.work import Prompt, Work, distinct


def find_llama_server(given: str | None) -> list[str] | None:
    """How to start llama-server: as given, or from the path; None if there is none."""
    if given:
        return shlex.split(given)
    binary = shutil.which("llama-server")
    return [binary] if binary else None


@contextmanager
def rival(
    setting: Setting, slots: int, *, in_flight: int = 0, ctx_per_slot: int = 1024
) -> Iterator[Callable[[Work], dict[str, Side]]]:
    """What makes llama-server a side of a race over some work; no side where it is not at hand.

    By default it has twice as many requests in flight as it has slots.
    """
    if setting.llama_server is None:
        yield lambda work: {}
        return
    requests = in_flight or 2 * slots
    limits = httpx.Limits(max_connections=requests)
    with (
        _llama_server(setting.llama_server, setting.path, slots, ctx_per_slot, setting.threads) as (server, url),
        httpx.Client(base_url=url, timeout=600, limits=limits, trust_env=False) as client,
        ThreadPoolExecutor(requests) as threads,
    ):

        def complete(prompt: Prompt, max_tokens: int) -> int:
            body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0.0}
            answer = client.post("/completion", json=body).raise_for_status()
            return int(answer.json()["tokens_predicted"])

        def run(work: Work) -> int:
            return sum(threads.map(lambda prompt: complete(prompt, work.max_tokens), work.prompts))

        run(distinct(setting.model, 2, 8, 4, seed=99))
        yield lambda work: {"llama-server": Side(lambda: run(work), server)}


@contextmanager
def _llama_server(
    command: list[str], model: Path, slots: int, ctx_per_slot: int, threads: int
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    options = ["-m", model, "--host", "127.0.0.1", "--port", port, "-np", slots, "-c", slots * ctx_per_slot]
    options += ["-t", threads]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="bench-llama-") as folder:
        log = Path(folder) / "log"
        with process([*command, *map(str, options)], log) as child:
            wait_for(lambda: _healthy(url), child, "llama-server", log)
            yield child, url


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
