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


TARGETS = [
    Target("tokens/s, queue / bare loop, n = 8", ("throughput", "8", "queue/limit"), 0.95),
    Target("tokens/s, queue / bare loop, n = 32", ("throughput", "32", "queue/limit"), 0.95),
    Target("tokens/s, queue / llama-server, distinct prompts, n = 8", ("throughput", "8", "queue/llama-server"), 1.10),
    Target(
        "tokens/s, queue / llama-server, distinct prompts, n = 32", ("throughput", "32", "queue/llama-server"), 1.10
    ),
    Target(
        "32 jobs over one 460-token prefix, all at once: llama-server's time / the queue's",
        ("scenarios", "shared_prefix", "llama-server/sharing"),
        5.0,
    ),
    Target("tokens/s, queue at n = 32 / `Llama` one by one", ("throughput", "one_by_one", "queue/Llama"), 4.5),
    _most("worker's own CPU outside llama.cpp, n = 32", ("profile", "own CPU outside llama.cpp %"), 3.0, "% of a step"),
    _most("enqueue to first token less the bare loop's", ("latency", "first_token", "overhead_ms"), 10.0, "ms"),
    _most("token sampled to token at a subscriber, n = 32, median", ("latency", "token", "median_ms"), 2.0, "ms"),
    _most("token sampled to token at a subscriber, n = 32, p99", ("latency", "token", "p99_ms"), 10.0, "ms"),
    _most("Redis memory of a finished job of 256 tokens", ("latency", "memory_of_a_job", "total_kb"), 32.0, "KB"),
    _most("step time with 10,000 queued jobs / without", ("scenarios", "backlog", "with/without"), 1.01, ""),
]
