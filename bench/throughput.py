"""Tokens per second: the limit, the queue and llama-server on the same work, in a race.

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
from bench.work import distinct

_PROMPT_TOKENS, _MAX_TOKENS, _CTX_PER_SLOT = 64, 64, 1024
#: Jobs, as a multiple of the slots: the fewer slots, the shorter a round.
_WAVES = {1: 8, 8: 4}


def measure(setting: Setting) -> dict[str, Any]:
    """For each number of sequences: medians in tokens/s."""
    return {str(slots): at(setting, slots) for slots in ((1, 4) if setting.quick else (1, 8, 32))}


def at(setting: Setting, slots: int) -> dict[str, Any]:
    """Limit, queue and llama-server at so many sequences."""
    jobs, tokens = slots * _WAVES.get(slots, 2), setting.size(_MAX_TOKENS, 8)
    works = (distinct(setting.model, jobs, _PROMPT_TOKENS, tokens, 1000 * slots + seed) for seed in itertools.count())
    size: dict[str, Any] = {"ctx_per_slot": _CTX_PER_SLOT, "threads": setting.threads}
    with ExitStack() as stack:
        limit = stack.enter_context(child(setting.path, slots, **size))
        ours = stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, **size))
        rival = stack.enter_context(peers.rival(setting, slots, ctx_per_slot=_CTX_PER_SLOT))

        def measure() -> dict[str, float]:
            work = next(works)
            sides = {
                "limit": Side(lambda: limit.run(work), limit.process),
                "queue": Side(lambda: queue.run(ours, work), ours.child),
            }
            return rates(sides | rival(work))

        print(f"\n{slots} at a time: {(first := next(works))}")
        rounds = setting.referee.play(measure)
    return rounds.figures("queue/limit", "queue/llama-server", "limit/llama-server", work=str(first), unit="tokens/s")
