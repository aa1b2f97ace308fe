"""Many calls in one round trip. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from celery_llama.ledger.operation import Operation
from celery_llama.ledger.queries import Query
from celery_llama.protocol.errors import CeleryLlamaError

Call = Operation[Any] | Query[Any]


def call_together(connection: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    """Send the calls at once; answers in their order, errors among them. Raises redis.ConnectionError, TimeoutError."""
    with connection.pipeline(transaction=False) as pipe:
        for call in calls:
            if isinstance(call, Query):
                pipe.execute_command(*call.command)  # type: ignore[no-untyped-call]
            else:
                connection.register_script(call.script)(call.keys, call.arguments, client=pipe)
        return _answers(calls, pipe.execute(raise_on_error=False))


async def call_together_async(connection: redis.asyncio.Redis, calls: Sequence[Call]) -> list[Any]:
    """Send the calls at once; answers in their order, errors among them. Raises redis.ConnectionError, TimeoutError."""
    async with connection.pipeline(transaction=False) as pipe:
        for call in calls:
            if isinstance(call, Query):
                pipe.execute_command(*call.command)
            else:
                await connection.register_script(call.script)(call.keys, call.arguments, client=pipe)
        return _answers(calls, await pipe.execute(raise_on_error=False))


def _answers(calls: Sequence[Call], replies: Sequence[Any]) -> list[Any]:
    return [_answer(call, reply) for call, reply in zip(calls, replies, strict=True)]


def _answer(call: Call, reply: Any) -> Any:
    if isinstance(reply, Exception):
        return reply
    try:
        return call.parse(reply)
    except CeleryLlamaError as error:
        return error
