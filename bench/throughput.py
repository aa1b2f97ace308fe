"""Tokens per second: the limit, the queue and the peers on the same work, in rounds of all sides in turn.

Prompts are new in every round: llama-server keeps what it has read, and would not read it again.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from bench import peers, queue
from bench.limit import BareLoop
from bench.setting import Setting
from bench.stage import server, worker
from bench.work import Work, distinct, in_turn

PROMPT_TOKENS, MAX_TOKENS, CTX_PER_SLOT = 64, 64, 1024
#: Jobs, as a multiple of the slots: the fewer slots, the shorter a round.
_WAVES = {1: 8, 8: 4, 32: 2}


def measure(setting: Setting) -> dict[str, Any]:
    """For each number of sequences: medians in tokens/s."""
    sizes = (1, 4) if setting.quick else (1, 8, 32)
    return {str(slots): _at(setting, slots) for slots in sizes} | {"one_by_one": _one_by_one(setting)}


def _at(setting: Setting, slots: int) -> dict[str, Any]:
    def make(seed: int) -> Work:
        jobs, tokens = slots * _WAVES.get(slots, 2), setting.size(MAX_TOKENS, 8)
        return distinct(setting.model, jobs, PROMPT_TOKENS, tokens, 1000 * slots + seed)

    print(f"\n{slots} at a time: {make(0)}")
    decode: list[float] = []
    with ExitStack() as stack:
        loop = stack.enter_context(BareLoop(setting.model, slots, ctx_per_slot=CTX_PER_SLOT, threads=setting.threads))
        url = stack.enter_context(server())
        options: dict[str, Any] = {"ctx_per_slot": CTX_PER_SLOT, "threads": setting.threads}
        ours = stack.enter_context(worker(url, setting.path, slots, **options))

        def limit(work: Work) -> float:
            run = loop.run(work)
            decode.append(run.decoded_per_second)
            return run.tokens_per_second

        sides = {"limit": in_turn(make, limit)}
        sides["queue"] = in_turn(make, lambda work: queue.run(ours, work).tokens_per_second)
        if setting.llama_server:
            rival = stack.enter_context(
                peers.llama_server(setting.llama_server, setting.path, slots, CTX_PER_SLOT, setting.threads)
            )
            rival.run(distinct(setting.model, 2, 8, 4, seed=99))
            sides["llama-server"] = in_turn(make, lambda work: rival.run(work).tokens_per_second)
        rounds = setting.referee.play(sides)
    figures = rounds.figures(work=str(make(0)), limit_decode_only=round(statistics.median(decode), 1))
    figures["queue/limit"] = round(rounds.ratio("queue", "limit"), 4)
    if setting.llama_server:
        figures["queue/llama-server"] = round(rounds.ratio("queue", "llama-server"), 4)
    return figures


def _one_by_one(setting: Setting) -> dict[str, Any]:
    """The queue with 32 slots against `Llama`, with and without Celery around it."""
    slots = setting.size(32, 4)
    tokens = setting.size(MAX_TOKENS, 8)
    many = distinct(setting.model, 2 * slots, PROMPT_TOKENS, tokens, seed=32)
    few = Work(many.prompts[: setting.size(6, 2)], tokens)
    print(f"\none after another: {few}; the queue: {many}")
    with ExitStack() as stack:
        ours = stack.enter_context(
            worker(
                stack.enter_context(server()), setting.path, slots, ctx_per_slot=CTX_PER_SLOT, threads=setting.threads
            )
        )
        llama = stack.enter_context(peers.one_by_one(setting.path, setting.threads))
        task = stack.enter_context(peers.behind_celery(stack.enter_context(server()), setting.path, setting.threads))
        rounds = setting.referee.play(
            {
                "queue": lambda: queue.run(ours, many).tokens_per_second,
                "Llama": lambda: peers.run_one_by_one(llama, few).tokens_per_second,
                "Llama behind Celery": lambda: peers.run_behind_celery(task, few).tokens_per_second,
            }
        )
    figures = rounds.figures(work=str(many))
    figures["queue/Llama"] = round(rounds.ratio("queue", "Llama"), 3)
    figures["queue/Llama behind Celery"] = round(rounds.ratio("queue", "Llama behind Celery"), 3)
    return figures
