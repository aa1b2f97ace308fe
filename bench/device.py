"""What the host costs a device: the whole product on a pretended one (`pretended_worker.py`), whose time is known.

All slots decode, and jobs end and are followed by others all the time, while nobody submits. A prompt is one token, so
that it is read with the others' rows: what is measured is the host.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import model
from bench.race import standing_still
from bench.setting import Setting
from bench.stage import server, worker
from bench.step_profile import PARTS

#: Sequences, and the milliseconds that the device takes for a step of so many.
_SIZES = ((32, 10), (64, 15), (128, 20))
_WARM_SECONDS, _SECONDS = 3.0, 8.0
_TOKENS = (128, 384)
_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name", "count"],
    },
}
_OPTIONS: dict[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default": {},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}},
    "penalties, logprobs": {"repeat_penalty": 1.1, "presence_penalty": 0.2, "logprobs": True, "top_logprobs": 5},
}
_CHAINS = {"greedy": ("greedy",), "default": ("default",), "mix": tuple(_OPTIONS)}


def measure(setting: Setting) -> dict[str, Any]:
    """For each size and kind of chain: tokens/s, the device's idle time a step, and who uses the host."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-device-") as folder:
        path = model.write(Path(folder) / "vocabulary.gguf", model.VOCABULARY)
        for slots, milliseconds in _SIZES[: setting.size(len(_SIZES), 1)]:
            for chains, kinds in _CHAINS.items():
                print(f"\npretended device, {slots} at a time, {milliseconds} ms a step, {chains}")
                figures[f"{slots} at {milliseconds} ms, {chains}"] = _at(setting, path, slots, milliseconds, kinds)
    return figures


def _at(setting: Setting, path: Path, slots: int, milliseconds: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    environment = {"BENCH_DEVICE": f"{milliseconds} {setting.device_waits_in}"}
    jobs_per_second = slots / milliseconds * 1000 / (sum(_TOKENS) / 2)
    wanted = slots + round(jobs_per_second * (_WARM_SECONDS + _SECONDS) * 1.2)
    chance = random.Random(slots)
    with (
        server() as url,
        worker(
            url,
            path,
            slots,
            module="bench.pretended_worker",
            environment=environment,
            ctx_per_slot=512,
            drain_seconds=0,
        ) as ours,
    ):

        def measure() -> dict[str, float]:
            with standing_still([ours.child]):
                for number in range(wanted - ours.open_jobs()):
                    options = _OPTIONS[kinds[number % len(kinds)]]
                    ours.client.submit(
                        prompt=[model.FIRST_WORD_TOKEN + number], max_tokens=chance.randint(*_TOKENS), **options
                    )
            time.sleep(_WARM_SECONDS)
            before = ours.snapshot()
            time.sleep(setting.size(round(_SECONDS), 3))
            return _figures(before, ours.snapshot(), slots * 1000 / milliseconds)

        rounds = setting.referee.play(measure)
    return rounds.figures()


def _figures(before: dict[str, Any], after: dict[str, Any], most_tokens_per_second: float) -> dict[str, float]:
    """All of one round; milliseconds are those of a call."""

    def grown(group: str, name: str) -> float:
        return float(after[group].get(name, 0)) - float(before[group].get(name, 0))

    calls = grown("counts", "calls")
    seconds = (after["at_ns"] - before["at_ns"]) / 1e9
    tokens = after["generated_tokens"] - before["generated_tokens"]
    found = {
        "tokens/s": tokens / seconds,
        "of the limit": tokens / seconds / most_tokens_per_second,
        "tokens a call": tokens / calls,
        "idle ms": grown("wall_ns", "device idle") / calls / 1e6,
    }
    for part in PARTS:
        if part != "llama_decode":
            found[f"{part} ms"] = grown("wall_ns", part) / calls / 1e6
    # Coming back late from the wait: for want of the interpreter's lock or of a core.
    waits = grown("wall_ns", "llama_decode") - grown("wall_ns", "device busy")
    found["late ms"] = max(0.0, waits / calls / 1e6)
    for thread in sorted(after["threads_ns"].keys() - {"bench"}):
        found[f"thread {thread} ms"] = grown("threads_ns", thread) / calls / 1e6
    return found
