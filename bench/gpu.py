"""The GPU: limit and queue with a model of 8B's shape, the host's share of a step, and the reproducibility probe.

Where llama.cpp has no GPU it says so. It needs a build of llama-cpp-python for the device:
`CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-binary llama-cpp-python llama-cpp-python`.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from bench import model, step_profile, throughput
from bench.setting import Setting
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.probe import probe
from celery_llama_worker.settings import WorkerSettings

_SLOTS = (1, 8, 32, 64, 128)


def measure(setting: Setting) -> dict[str, Any]:
    """For each number of sequences, limit and queue; nothing without a GPU."""
    if not lib.llama_supports_gpu_offload():
        return {"measured": False, "why": "not measured: this build of llama.cpp has no GPU"}
    figures: dict[str, Any] = {"measured": True, "model": "random weights, 8B, Q8_0", "devices": _devices()}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        path = model.write(Path(folder) / "random-8b.q8_0.gguf", model.EIGHT_B)
        figures["probe"] = _probe(path)
        with LlamaModel(path, gpu_layers=0) as for_tokens:
            here = replace(setting, path=path, model=for_tokens, llama_server=None)
            for slots in _SLOTS:
                profile = step_profile.measure(here, slots)
                host = round(100 - profile["llama_decode %"], 2)
                figures[str(slots)] = throughput.at(here, slots) | {"host's share of a step, %": host}
    return figures


def _probe(path: Path) -> dict[str, Any]:
    with (
        LlamaModel(path) as loaded,
        LlamaEngine(loaded, WorkerSettings(model=str(path), slots=32, ctx_per_slot=256)) as engine,
    ):
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
