"""The rules of docs/architecture.md that a program can check, but for who imports whom: `lint-imports` checks that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.settings_table import README, render

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for package in ("producer", "worker") for path in (ROOT / package).rglob("*.py"))
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 300, 50

every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def name_of(path: Path) -> str:
    """A module's path in the repository."""
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text())


def public_definitions(
    node: ast.Module | ast.ClassDef,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes, functions and methods without a leading underscore; of private classes, none; of overloads, the last."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            if "overload" in map(ast.unparse, child.decorator_list):
                continue
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child)


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
