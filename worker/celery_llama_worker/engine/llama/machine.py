"""What this machine, or its container, allows: cores and memory. Read from the system once, at start; any thread."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores(cpu: Path = Path("/sys/devices/system/cpu"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Physical cores that this process may use, and no more than its container's quota; at least 1.

    ggml's threads wait for each other at every operation: a second one on a core, or one the quota stops, holds up all.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu, number) for number in allowed}
    return max(1, min(len(cores), _quota(cgroup)))


def _siblings(cpu: Path, number: int) -> str:
    """Names the physical core of a logical one: the list of logical ones that share it."""
    try:
        return (cpu / f"cpu{number}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


def _quota(cgroup: Path) -> int:
    """Whole cores that a container's quota allows (cgroup v2); large without a quota."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 16


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that may still be allocated, within the container's limit; None where the system does not say."""
    bounds = []
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        bounds.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, ValueError, KeyError):
        pass
    try:
        limit, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        bounds.append(limit - used)
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return min(bounds, default=None)
