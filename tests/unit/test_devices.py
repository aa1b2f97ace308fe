"""What is said of the devices that there are, and of those that there are not."""

from __future__ import annotations

import llama_cpp.llama_cpp as lib
import pytest

from celery_llama_worker.engine.llama.devices import Device, describe, found_devices, used_gpus

CPU = Device("CPU", "AMD EPYC", is_gpu=False, free_bytes=8 * 2**30)
GPU = Device("Vulkan0", "llvmpipe", is_gpu=True, free_bytes=3 * 2**29)


def build(monkeypatch: pytest.MonkeyPatch, *, for_gpus: bool) -> None:
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: for_gpus)


def test_this_machines_processor_is_found() -> None:
    (cpu,) = [device for device in found_devices() if not device.is_gpu]

    assert cpu.name == "CPU"
    assert cpu.description


def test_a_gpu_is_named_with_its_free_memory() -> None:
    assert describe([GPU, CPU], -1) == "Vulkan0 (llvmpipe, 1.5 GiB free)"
    assert used_gpus([GPU, CPU], -1) == used_gpus([GPU, CPU], 3) == [GPU]


def test_a_build_for_gpus_that_finds_none_is_said_to_compute_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, for_gpus=True)

    assert describe([CPU], -1) == "CPU (AMD EPYC); llama.cpp is built for GPUs and FINDS NONE"
    assert used_gpus([CPU], -1) == []


def test_a_gpu_that_is_not_used_is_said_not_to_be() -> None:
    assert describe([GPU, CPU], 0) == "CPU (AMD EPYC); there is a GPU, and gpu_layers is 0"
    assert used_gpus([GPU, CPU], 0) == []


def test_a_build_without_a_gpu_backend_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch, for_gpus=False)

    assert describe([CPU], -1) == "CPU (AMD EPYC); llama.cpp is built without a GPU backend"
    assert describe([], -1) == "CPU; llama.cpp is built without a GPU backend"
