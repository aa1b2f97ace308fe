"""Tokens per second: the limit, the queue and the peers on the same work, in a race.

Prompts are new in every round: llama-server keeps what it has read, and would not read it again.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

from bench import peers, queue
from bench.child import child
from bench.race import Side, rates
from bench.setting import Setting
from bench.stage import server, worker
from bench.work import Work, distinct

PROMPT_TOKENS, MAX_TOKENS, CTX_PER_SLOT = 64, 64, 1024
#: Jobs, as a multiple of the slots: the fewer slots, the shorter a round.
_WAVES = {1: 8, 8: 4, 32: 2}


def measure(setting: Setting) -> dict[str, Any]:
    """For each number of sequences: medians in tokens/s."""
    sizes = (1, 4) if setting.quick else (1, 8, 32)
    return {str(slots): _at(setting, slots) for slots in sizes} | {"one_by_one": _one_by_one(setting)}


def _at(setting: Setting, slots: int) -> dict[str, Any]:
    jobs, tokens = slots * _WAVES.get(slots, 2), setting.size(MAX_TOKENS, 8)
    works = (distinct(setting.model, jobs, PROMPT_TOKENS, tokens, 1000 * slots + seed) for seed in itertools.count())
    size: dict[str, Any] = {"ctx_per_slot": CTX_PER_SLOT, "threads": setting.threads}
    with ExitStack() as stack:
        limit = stack.enter_context(child("limit", setting.path, slots, **size))
        ours = stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, **size))
        rival = None
        if setting.llama_server:
            rival = stack.enter_context(peers.llama_server(setting.llama_server, setting.path, slots, **size))
            rival.run(distinct(setting.model, 2, 8, 4, seed=99))

        def measure() -> dict[str, float]:
            work = next(works)
            sides = {
                "limit": Side(lambda: limit.run(work), limit.process),
                "queue": Side(lambda: queue.run(ours, work), ours.child),
            }
            if rival:
                sides["llama-server"] = Side(lambda: rival.run(work), rival.child)
            return rates(sides)

        print(f"\n{slots} at a time: {(first := next(works))}")
        rounds = setting.referee.play(measure)
    figures = rounds.figures(work=str(first))
    figures["queue/limit"] = round(rounds.ratio("queue", "limit"), 4)
    if setting.llama_server:
        figures["queue/llama-server"] = round(rounds.ratio("queue", "llama-server"), 4)
        figures["limit/llama-server"] = round(rounds.ratio("limit", "llama-server"), 4)
    return figures


def _one_by_one(setting: Setting) -> dict[str, Any]:
    """The queue with 32 slots against `Llama`, with and without Celery around it."""
    slots, tokens = setting.size(32, 4), setting.size(MAX_TOKENS, 8)
    many = distinct(setting.model, 2 * slots, PROMPT_TOKENS, tokens, seed=32)
    few = Work(many.prompts[: setting.size(12, 2)], tokens)
    print(f"\none after another: {few}; the queue: {many}")
    size: dict[str, Any] = {"ctx_per_slot": CTX_PER_SLOT, "threads": setting.threads}
    with ExitStack() as stack:
        ours = stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, **size))
        llama = stack.enter_context(child("llama", setting.path, 1, **size))
        solo = stack.enter_context(
            peers.behind_celery(stack.enter_context(server()), setting.path, CTX_PER_SLOT, setting.threads)
        )
        sides = {
            "queue": Side(lambda: queue.run(ours, many), ours.child),
            "Llama": Side(lambda: llama.run(few), llama.process),
            "Llama behind Celery": Side(lambda: solo.run(few), solo.child),
        }
        rounds = setting.referee.play(lambda: rates(sides))
    figures = rounds.figures(work=str(many))
    figures["queue/Llama"] = round(rounds.ratio("queue", "Llama"), 3)
    figures["queue/Llama behind Celery"] = round(rounds.ratio("queue", "Llama behind Celery"), 3)
    return figures
