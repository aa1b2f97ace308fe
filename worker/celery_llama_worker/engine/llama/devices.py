"""What llama.cpp computes on: the devices that ggml has found, and those that it uses. At start; any thread.

A build for GPUs says nothing, and computes on the CPU, where it finds none: a driver is missing, or the container has
no access. So the worker says what it has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib
from llama_cpp._ggml import libggml

#: `enum ggml_backend_dev_type` (ggml-backend.h): a CPU, a GPU, one that shares the CPU's memory.
_CPU, _GPU, _INTEGRATED_GPU = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Device:
    """A device that ggml has found."""

    name: str
    description: str
    is_gpu: bool
    free_bytes: int = 0

    def __str__(self) -> str:
        free = f", {self.free_bytes / 2**30:.1f} GiB free" if self.is_gpu and self.free_bytes else ""
        return f"{self.name} ({self.description}{free})"


def found_devices() -> list[Device]:
    """The CPUs and GPUs that this build of llama.cpp can compute on, in ggml's order."""
    count = _function("ggml_backend_dev_count", ctypes.c_size_t)()
    devices = [_read(_function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)(at)) for at in range(count)]
    return [device for device in devices if device is not None]


def used_gpus(found: Sequence[Device], gpu_layers: int) -> list[Device]:
    """The GPUs that take part; none if all layers stay on the CPU."""
    return [device for device in found if device.is_gpu] if gpu_layers else []


def describe(found: Sequence[Device], gpu_layers: int) -> str:
    """What computes, in words, and why it is the CPU where that may surprise."""
    if gpus := used_gpus(found, gpu_layers):
        return " and ".join(map(str, gpus))
    cpu = next((f"CPU ({device.description})" for device in found if not device.is_gpu), "CPU")
    if any(device.is_gpu for device in found):
        return f"{cpu}; there is a GPU, and gpu_layers is 0"
    if lib.llama_supports_gpu_offload():
        return f"{cpu}; llama.cpp is built for GPUs and FINDS NONE"
    return f"{cpu}; llama.cpp is built without a GPU backend"


def _read(pointer: int) -> Device | None:
    """A device's properties; None of what only helps a CPU, such as BLAS."""

    def ask(what: str, kind: Any) -> Any:
        return _function(f"ggml_backend_dev_{what}", kind, ctypes.c_void_p)(pointer)

    kind = ask("type", ctypes.c_int)
    if kind not in (_CPU, _GPU, _INTEGRATED_GPU):
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    sizes = ctypes.POINTER(ctypes.c_size_t)
    _function("ggml_backend_dev_memory", None, ctypes.c_void_p, sizes, sizes)(pointer, free, total)
    name, description = ask("name", ctypes.c_char_p), ask("description", ctypes.c_char_p)
    return Device(
        (name or b"").decode(errors="replace"),
        (description or b"").decode(errors="replace").strip(),
        kind != _CPU,
        free.value,
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """One of ggml's functions, which llama-cpp-python does not wrap."""
    return ctypes.CFUNCTYPE(result, *arguments)((name, libggml))
