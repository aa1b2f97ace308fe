"""What `import celery_llama` offers, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import celery_llama
from celery_llama.protocol import errors

#: What takes long to import.
HEAVY = {"asyncio", "celery", "kombu", "llama_cpp", "numpy", "pydantic", "pydantic_settings", "redis", "rich"}


def imported_by(statement: str) -> set[str]:
    """Which modules a fresh interpreter has after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (process.returncode, process.stderr) == (0, "")
    return set(process.stdout.split())


def test_what_type_checkers_see_is_what_there_is() -> None:
    checked, _ = [node for node in ast.parse(Path(celery_llama.__file__).read_text()).body if isinstance(node, ast.If)]
    lazy = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    modules = {name: getattr(celery_llama, name).__module__ for name in celery_llama.__all__}

    assert lazy.items() <= modules.items()
    assert {modules[name] for name in modules.keys() - lazy.keys()} == {errors.__name__}
    assert list(celery_llama.__all__) == sorted(celery_llama.__all__)
    assert set(celery_llama.__all__) <= set(dir(celery_llama))


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    name = "Clint"
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        getattr(celery_llama, name)


def test_every_public_name_says_what_it_is() -> None:
    assert all(getattr(celery_llama, name).__doc__ for name in celery_llama.__all__)


@pytest.mark.parametrize(
    ("statement", "needed"),
    [
        ("import celery_llama", set()),
        ("from celery_llama import GenerationFailed", set()),
        ("from celery_llama import Token", {"pydantic"}),
        ("from celery_llama import Client", {"pydantic", "pydantic_settings", "redis", "asyncio"}),
        ("import celery_llama.cli.commands", {"pydantic", "pydantic_settings", "redis", "asyncio"}),
    ],
)
def test_an_import_brings_what_it_needs(statement: str, needed: set[str]) -> None:
    modules = imported_by(statement)

    assert modules & HEAVY <= needed
    assert "celery_llama_worker" not in modules
