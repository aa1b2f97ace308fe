"""A call of one of the ledger's Lua scripts, as data: what goes in, and how to read what comes out. No I/O.

scripts.py runs it, so the synchronous and the asynchronous client and the worker share every line of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Argument = str | bytes | int | float


@cache
def load_script(name: str) -> str:
    """The source of `lua/<name>.lua`."""
    return resources.files("celery_llama.ledger").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """One call of a script."""

    script: str
    keys: Sequence[str]
    arguments: Sequence[Argument]
    parse: Callable[[Any], T]
