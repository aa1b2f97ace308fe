"""Runs the ledger's Lua scripts. Any thread.

An `Operation` is data; `execute` and `execute_async` run it, so the synchronous and the asynchronous client and the
worker share every line of the protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

T = TypeVar("T")
Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest under which Redis keeps it."""

    source: str
    sha: str

    @classmethod
    @cache
    def load(cls, name: str) -> Script:
        """Read `lua/<name>.lua`."""
        source = resources.files("celery_llama.ledger").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
        return cls(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """One call of a script: what goes in, and how to read what comes out."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument]
    parse: Callable[[Any], T]


def execute(connection: redis.Redis, operation: Operation[T]) -> T:
    """Run an operation; raises redis.RedisError."""
    script, values = operation.script, [*operation.keys, *operation.arguments]
    try:
        reply = connection.evalsha(script.sha, len(operation.keys), *values)
    except NoScriptError:
        reply = connection.eval(script.source, len(operation.keys), *values)
    return operation.parse(reply)


async def execute_async(connection: redis.asyncio.Redis, operation: Operation[T]) -> T:
    """Run an operation; raises redis.RedisError."""
    script, values = operation.script, [*operation.keys, *operation.arguments]
    try:
        reply = await connection.evalsha(script.sha, len(operation.keys), *values)
    except NoScriptError:
        reply = await connection.eval(script.source, len(operation.keys), *values)
    return operation.parse(reply)
