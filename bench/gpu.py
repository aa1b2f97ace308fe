"""The GPU in one script of at most ten minutes: limit and queue with an 8B-shaped model, and the reproducibility probe.

`python -m bench gpu`; where llama.cpp has no GPU it says `not measured`. It needs a build of llama-cpp-python for the
device: `CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-binary llama-cpp-python llama-cpp-python`.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from bench import model, queue
from bench.limit import BareLoop
from bench.stage import server, worker
from bench.work import Work, distinct
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.probe import probe
from celery_llama_worker.settings import WorkerSettings

_SECONDS = 570.0
_SLOTS = (32, 8, 1, 64, 128)
_ROUNDS, _CTX, _TOKENS = 5, 256, 64


def measure(shape: str = "8b", kind: str = "q8_0", *, anyway: bool = False) -> dict[str, Any]:
    """For each number of sequences, limit and queue in turn, as long as there is time; `anyway` without a GPU too."""
    if not (lib.llama_supports_gpu_offload() or anyway):
        return {"measured": False, "why": "not measured: this build of llama.cpp has no GPU"}
    deadline = time.monotonic() + _SECONDS
    figures: dict[str, Any] = {"measured": True, "model": f"random weights, {shape} {kind}", "devices": _devices()}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        path = model.write(Path(folder) / f"random-{shape}.{kind}.gguf", shape, kind)
        print(f"model written, {path.stat().st_size / 2**30:.1f} GiB; {deadline - time.monotonic():.0f} s left")
        with LlamaModel(path) as loaded:
            figures["probe"] = _probe(loaded, path)
            for slots in _SLOTS:
                if deadline - time.monotonic() < 45:
                    figures[str(slots)] = "not measured: no time left"
                    continue
                figures[str(slots)] = _at(loaded, path, slots, deadline)
    return figures


def _at(loaded: LlamaModel, path: Path, slots: int, deadline: float) -> dict[str, Any]:
    work = distinct(loaded, 2 * slots, 64, _TOKENS, seed=slots)
    ratios, limits, queues = [], [], []
    with (
        server() as url,
        worker(url, path, slots, ctx_per_slot=_CTX) as ours,
        BareLoop(loaded, slots, ctx_per_slot=_CTX) as loop,
    ):
        loop.run(Work(work.prompts[:slots], 4))
        for _ in range(_ROUNDS):
            limits.append(loop.run(work).tokens_per_second)
            begun = time.monotonic()
            queues.append(queue.run(ours, work) / (time.monotonic() - begun))
            ratios.append(queues[-1] / limits[-1])
            if time.monotonic() > deadline - 20:
                break
    found = {
        "limit": round(statistics.median(limits), 1),
        "queue": round(statistics.median(queues), 1),
        "queue/limit": round(statistics.median(ratios), 3),
        "rounds": len(ratios),
    }
    print(f"{slots:4} at a time: {found}")
    return found


def _probe(loaded: LlamaModel, path: Path) -> dict[str, Any]:
    with LlamaEngine(loaded, WorkerSettings(model=str(path), slots=32, ctx_per_slot=_CTX)) as engine:
        report = probe(engine, loaded.n_vocab, 64)
    found = {"decode": report.decode, "prefill": report.prefill, "seconds": round(report.seconds, 2)}
    print(f"output independent of the batch: {found}")
    return found


def _devices() -> list[str]:
    """What NVIDIA's driver says; other makers' devices are not named."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return [line.partition(" (UUID")[0] for line in listed.stdout.splitlines()]
