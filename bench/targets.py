"""What must be reached, and what to say where it is not. Read by `report.py`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A figure in the results, and its bound."""

    name: str
    #: Where the figure is in the results.
    path: tuple[str, ...]
    bound: float
    unit: str = ""
    at_least: bool = True
    #: Why it is not met; shown only then.
    reason: str = ""

    def value(self, results: dict[str, Any]) -> float | None:
        """The measured value; None if it has not been measured."""
        found: Any = results
        for key in self.path:
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return float(found)

    def met(self, value: float) -> bool:
        """Whether the value is good enough."""
        compare: Callable[[float, float], bool] = operator.ge if self.at_least else operator.le
        return compare(value, self.bound)


def _most(name: str, path: tuple[str, ...], bound: float, unit: str, reason: str = "") -> Target:
    return Target(name, path, bound, unit, at_least=False, reason=reason)


#: ggml's threads wait for each other at every operation, so what anybody else takes of a core, all of them lose.
_SHARED_CORES = "Redis, the client and the worker's other threads need the cores that ggml computes on."

_NO_FASTER = "The bare loop, without any queue, is hardly so much faster: limit/llama-server in the table below."

TARGETS = [
    Target("tokens/s, queue / bare loop, n = 8", ("throughput", "8", "queue/limit"), 0.95, reason=_SHARED_CORES),
    Target("tokens/s, queue / bare loop, n = 32", ("throughput", "32", "queue/limit"), 0.95, reason=_SHARED_CORES),
    Target(
        "tokens/s, queue / llama-server, distinct prompts, n = 8",
        ("throughput", "8", "queue/llama-server"),
        1.10,
        reason=_NO_FASTER,
    ),
    Target(
        "tokens/s, queue / llama-server, distinct prompts, n = 32",
        ("throughput", "32", "queue/llama-server"),
        1.10,
        reason=_NO_FASTER,
    ),
    Target(
        "32 jobs over one 460-token prefix, all at once: llama-server's time / the queue's",
        ("scenarios", "shared_prefix", "llama-server/sharing"),
        5.0,
        reason="Most of what is left is decoding, which sharing does not change; first tokens gain far more.",
    ),
    Target(
        "tokens/s, queue at n = 32 / `Llama` one by one",
        ("throughput", "one_by_one", "queue/Llama"),
        4.5,
        reason="On this processor the bare loop itself is no more than three times as fast at 32 as `Llama` at one.",
    ),
    _most(
        "worker's own CPU outside llama.cpp, n = 32",
        ("profile", "own CPU outside llama.cpp %"),
        3.0,
        "% of a step",
        "By thread in the profile below: the engine's Python and sampling, Celery and kombu, events.",
    ),
    _most(
        "enqueue to first token less the bare loop's",
        ("latency", "first_token", "overhead_ms"),
        10.0,
        "ms",
        "Submitting, delivery and claim come before the first decode; then publisher, Redis and reader want a core.",
    ),
    _most(
        "token sampled to token at a subscriber, n = 32, median",
        ("latency", "token", "median_ms"),
        2.0,
        "ms",
        "ggml has both cores by then; publisher, Redis and reader in turn wait for the kernel to interrupt it.",
    ),
    _most(
        "token sampled to token at a subscriber, n = 32, p99",
        ("latency", "token", "p99_ms"),
        10.0,
        "ms",
        "As the median.",
    ),
    _most("Redis memory of a finished job of 256 tokens", ("latency", "memory_of_a_job", "total_kb"), 32.0, "KB"),
    _most("time a token with 10,000 queued jobs / with 1,000", ("scenarios", "backlog", "many/few"), 1.01, ""),
]
