"""Delays, and what a worker costs that has nothing to do."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import queue
from bench.limit import BareLoop
from bench.quiet import Neighbours, in_turn
from bench.setting import Setting
from bench.stage import OBSERVED, Worker, process, server, worker
from bench.work import Work, distinct, text_tokens

Arrivals = dict[str, list[tuple[int, int]]]

#: Between two jobs, so that both sides start with threads that sleep.
_PAUSE_SECONDS = 0.05


def measure(setting: Setting) -> dict[str, Any]:
    """All delays."""
    with server() as url:
        with worker(url, setting.path, setting.size(32, 4), threads=setting.threads) as ours:
            figures = {
                "first_token": _first_token(setting, ours),
                "idle": _idle(setting, ours),
                "memory_of_a_job": _memory(setting, ours),
            }
        with worker(url, setting.path, setting.size(32, 4), threads=setting.threads, module=OBSERVED) as ours:
            return figures | {"token": _token(setting, ours)}


def _first_token(setting: Setting, ours: Worker) -> dict[str, Any]:
    """Milliseconds from the call of `submit` to the first token, less a bare loop's time for the same token."""
    print("\nenqueue to first token, idle worker, 8-token prompts")
    tries = setting.size(15, 2)
    seeds = iter(range(1_000_000))

    def bare(loop: BareLoop) -> float:
        return statistics.median(_bare_first_token(setting, loop, next(seeds)) for _ in range(tries))

    def submit_and_stream() -> float:
        return statistics.median(_until_first_token(setting, ours, next(seeds)) for _ in range(tries))

    with BareLoop(setting.model, setting.size(32, 4), threads=setting.threads) as loop:
        rounds = setting.referee.play(in_turn({"queue": submit_and_stream, "limit": lambda: bare(loop)}))
    overhead = statistics.median(a - b for a, b in zip(rounds.values["queue"], rounds.values["limit"], strict=True))
    return rounds.figures(overhead_ms=round(overhead, 2), unit="ms", jobs_a_round=tries)


def _bare_first_token(setting: Setting, loop: BareLoop, seed: int) -> float:
    work = Work([text_tokens(setting.model, 8, seed)], 1)
    time.sleep(_PAUSE_SECONDS)
    return loop.run(work).seconds * 1000


def _until_first_token(setting: Setting, ours: Worker, seed: int) -> float:
    prompt = text_tokens(setting.model, 8, seed)
    time.sleep(_PAUSE_SECONDS)
    begun = time.perf_counter()
    handle = ours.client.submit(prompt=prompt, max_tokens=2, temperature=0.0)
    for event in handle.stream():
        if event.type == "token":
            elapsed = time.perf_counter() - begun
            break
    ours.wait_until_open(0)
    return elapsed * 1000


def _idle(setting: Setting, ours: Worker) -> dict[str, Any]:
    """Per cent of a core that a worker without jobs uses."""
    seconds = setting.size(20, 2)
    print(f"\nidle worker, {seconds} s")
    time.sleep(2)
    neighbours, before = Neighbours(), ours.cpu_seconds()
    time.sleep(seconds)
    share = (ours.cpu_seconds() - before) / seconds * 100
    print(f"{share:.2f} % of a core")
    return {"percent_of_a_core": round(share, 2), "seconds": seconds, "neighbours_cores": round(neighbours.cores(), 3)}


def _memory(setting: Setting, ours: Worker) -> dict[str, Any]:
    """Bytes in Redis of a finished job of 256 tokens: stream, ledger entry, Celery's result."""
    tokens = setting.size(256, 16)
    print(f"\nRedis memory of a finished job of {tokens} tokens")
    work = distinct(setting.model, setting.size(8, 2), 64, tokens, seed=5)
    handles = [
        ours.client.submit(prompt=prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True)
        for prompt in work.prompts
    ]
    results = queue.results(handles)
    assert all(result.usage.completion_tokens == tokens for result in results)
    time.sleep(0.5)
    parts: dict[str, list[int]] = {"stream": [], "ledger": [], "celery result": []}
    for handle in handles:
        names = ours.settings.names
        keys = [names.events(handle.id), names.job(handle.id), f"celery-task-meta-{handle.id}"]
        for part, key in zip(parts, keys, strict=True):
            parts[part].append(int(ours.connection.memory_usage(key, samples=0) or 0))
    medians = {part: statistics.median(values) for part, values in parts.items()}
    print({part: f"{value / 1024:.1f} KB" for part, value in medians.items()})
    return {"bytes": medians, "total_kb": round(sum(medians.values()) / 1024, 2), "tokens": tokens}


def _token(setting: Setting, ours: Worker) -> dict[str, Any]:
    """Milliseconds from a step's sampling to its tokens at a subscriber of all jobs, with all slots busy."""
    slots = setting.size(32, 4)
    print(f"\ntoken sampled to token at a subscriber, {slots} jobs")
    seeds = itertools.count(500)

    def delays() -> dict[str, float]:
        work = distinct(setting.model, slots, 64, setting.size(64, 8), seed=next(seeds))
        ours.snapshot()
        with subscriber(ours) as arrivals:
            queue.run(ours, work)
        sampled = {(job, number): at for job, number, at in ours.snapshot()["stamps"]}
        found = [(at - sampled[job, number]) / 1e6 for job, came in arrivals.items() for number, at in came]
        return {"median": statistics.median(found), "p99": statistics.quantiles(found, n=100)[98]}

    rounds = setting.referee.play(delays)
    return rounds.figures(median_ms=round(rounds.median("median"), 3), p99_ms=round(rounds.median("p99"), 3), unit="ms")


@contextmanager
def subscriber(ours: Worker) -> Iterator[Arrivals]:
    """Arrivals by job; filled on the way out."""
    address = urlsplit(ours.settings.redis_url)
    command = [sys.executable, "-m", "bench.subscriber", str(address.hostname), str(address.port)]
    command.append(f"{ours.settings.namespace}:*:events")
    arrivals: Arrivals = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-subscriber-") as folder,
        process(command, Path(folder) / "log", talks=True) as child,
    ):
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        yield arrivals
        child.stdin.close()
        arrivals.update(json.loads(child.stdout.read()))
