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


def _device(measurement: str, bound: float) -> Target:
    path = ("device", measurement, "medians", "of the limit")
    return Target(f"pretended device, {measurement}: tokens/s of the limit", path, bound)


#: ggml's threads wait for each other at every operation, so what anybody else takes of a core, all of them lose.
_SHARED_CORES = "Redis, the client and the worker's other threads need the cores that ggml computes on."

TARGETS = [
    Target("tokens/s, queue / bare loop, n = 8", ("throughput", "8", "queue/limit"), 0.95, reason=_SHARED_CORES),
    Target("tokens/s, queue / bare loop, n = 32", ("throughput", "32", "queue/limit"), 0.95, reason=_SHARED_CORES),
    _device("32 at 10 ms, default", 0.92),
    _device("64 at 15 ms, default", 0.92),
    _device("128 at 20 ms, default", 0.90),
    _device("32 at 10 ms, mix", 0.80),
    _most(
        "pretended device, 32 at 10 ms, default: idle between two decodes",
        ("device", "32 at 10 ms, default", "medians", "idle ms"),
        0.7,
        "ms",
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
    _most("token sampled to token at a subscriber, n = 32, p99", ("latency", "token", "p99_ms"), 10.0, "ms"),
    _most("Redis memory of a finished job of 256 tokens", ("latency", "memory_of_a_job", "total_kb"), 32.0, "KB"),
    _most("time a token with 10,000 queued jobs / with 1,000", ("backlog", "many/few"), 1.01, ""),
]

#: Stands below the table of the targets.
DROPPED = """\
No target any more, because no code of this project can reach it on a processor: a tenth more tokens/s than
llama-server, and five times its speed over a shared prefix, when the bare loop itself is hardly so much faster and
decoding is most of the time; 2 ms from a token's sampling to a subscriber in the median, while ggml has every core.
What the host costs shows on a device that leaves the processor alone: hence the pretended one."""
