"""Runs the ledger's operations. Any thread."""

from __future__ import annotations

from typing import TypeVar

import redis
import redis.asyncio

from celery_llama.ledger.operation import Operation

T = TypeVar("T")


def execute(connection: redis.Redis, operation: Operation[T]) -> T:
    """Run an operation; raises redis.RedisError."""
    script = connection.register_script(operation.script)
    return operation.parse(script(operation.keys, operation.arguments))


async def execute_async(connection: redis.asyncio.Redis, operation: Operation[T]) -> T:
    """Run an operation; raises redis.RedisError."""
    script = connection.register_script(operation.script)
    return operation.parse(await script(operation.keys, operation.arguments))
