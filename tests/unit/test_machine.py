"""What the operating system says about cores and memory, and what is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_llama_worker.engine.llama.machine import available_bytes, usable_cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores with two logical processors each, all of them allowed."""
    for number in range(8):
        folder = tmp_path / f"cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    return tmp_path


def cores(machine: Path) -> int:
    """What is found on the made-up machine."""
    return usable_cores(machine / "cpu", machine / "cgroup")


def test_two_threads_of_a_core_count_once(machine: Path) -> None:
    assert cores(machine) == 4


def test_only_allowed_cores_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 4})

    assert cores(machine) == 2


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_containers_quota_is_the_limit(machine: Path, quota: str, expected: int) -> None:
    (machine / "cgroup/cpu.max").write_text(quota)

    assert cores(machine) == expected


def test_a_machine_that_says_nothing_counts_its_processors(machine: Path, tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 8


def test_available_memory_is_what_the_system_says(machine: Path) -> None:
    (machine / "meminfo").write_text("MemTotal:  16000 kB\nMemAvailable:   8000 kB\n")

    assert available_bytes(machine / "meminfo", machine / "cgroup") == 8000 * 1024


def test_a_containers_limit_counts_where_it_is_lower(machine: Path) -> None:
    (machine / "meminfo").write_text("MemAvailable:   8000 kB\n")
    (machine / "cgroup/memory.max").write_text("3000000")
    (machine / "cgroup/memory.current").write_text("1000000")

    assert available_bytes(machine / "meminfo", machine / "cgroup") == 2_000_000


def test_a_container_without_a_limit_changes_nothing(machine: Path) -> None:
    (machine / "cgroup/memory.max").write_text("max")

    assert available_bytes(machine / "none", machine / "cgroup") is None


def test_the_command_line_does_not_load_llama_cpp_to_answer() -> None:
    loaded = "import sys, celery_llama_worker.cli; print([name for name in sys.modules if name == 'llama_cpp'])"

    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() == "[]"
