"""The profile of a step: who takes how much of it, and what the worker's other threads use meanwhile."""

from __future__ import annotations

import itertools
from typing import Any

from bench import queue
from bench.setting import Setting
from bench.stage import OBSERVED, Worker, server, worker
from bench.work import distinct

#: What the engine thread does in a step.
PARTS = ("llama_decode", "sample", "fill", "plan", "commit", "emit", "commands", "rest")


def measure(setting: Setting, slots: int = 32) -> dict[str, Any]:
    """Medians over rounds, with all slots busy."""
    slots, tokens = setting.size(slots, 4), setting.size(64, 16)
    print(f"\nprofile of a step, {slots} jobs")
    seeds = itertools.count(900)
    with (
        server() as url,
        worker(url, setting.path, slots, threads=setting.threads, module=OBSERVED) as ours,
    ):

        def measure() -> dict[str, float]:
            work = distinct(setting.model, 2 * slots, 64, tokens, seed=next(seeds))
            return _profile(ours, lambda: queue.run(ours, work))

        rounds = setting.referee.play(measure)
    figures = {name: round(rounds.median(name), 3) for name in rounds.values}
    for name, value in figures.items():
        print(f"  {name:32} {value}")
    return rounds.figures(unit="ms", **figures)


def _profile(ours: Worker, run: Any) -> dict[str, float]:
    before = ours.snapshot()
    run()
    after = ours.snapshot()

    def grown(group: str, name: str) -> int:
        return int(after[group].get(name, 0)) - int(before[group].get(name, 0))

    steps = grown("counts", "rest")
    step = sum(grown("wall_ns", part) for part in PARTS)
    found: dict[str, float] = {"step_ms": step / steps / 1e6, "steps": steps}
    for part in PARTS:
        found[f"{part} %"] = grown("wall_ns", part) / step * 100
    # An engine thread that waits for the interpreter's lock or for a core takes time without using any.
    engine = sum(grown("cpu_ns", part) for part in PARTS if part != "llama_decode")
    found["engine thread outside llama_decode, CPU %"] = engine / step * 100
    others = 0
    for thread in sorted(after["threads_ns"].keys() - {"engine", "bench"}):
        used = grown("threads_ns", thread)
        others += used
        if used / step > 0.0005:
            found[f"thread {thread}, CPU %"] = used / step * 100
    found["own CPU outside llama.cpp %"] = (engine + others) / step * 100
    return found
