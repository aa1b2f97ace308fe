"""The contract of celery-llama, and the client side of it. Imports no llama-cpp-python, and Celery only to send.

But for the errors, which Celery must find in order to raise them, a name is imported when it is first asked for: who
wants an event's class does not pay for Redis's client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_llama.protocol.errors import (
    CeleryLlamaError,
    GenerationFailed,
    IdempotencyConflict,
    InvalidJob,
    JobFailed,
    JobNotFound,
    JobTooLarge,
    MissingExtra,
    OutputMismatch,
    ResultTimeout,
    ServerUnreachable,
    StreamExpired,
    UnreadableData,
)

if TYPE_CHECKING:
    from celery_llama.client.async_client import AsyncClient, AsyncJobHandle
    from celery_llama.client.async_stream import AsyncEventStream
    from celery_llama.client.client import Client, JobHandle
    from celery_llama.protocol.embedding import EmbedJob
    from celery_llama.protocol.events import Event, Failed, Finished, Heartbeat, Progress, Started, Token
    from celery_llama.protocol.fields import EmbedFields, GenerateFields
    from celery_llama.protocol.jobs import GenerateJob, JsonSchema, Message, ResponseFormat, TextPart
    from celery_llama.protocol.results import Choice, JobError, JobInfo, Result, Timings, TokenLogprob, Usage
    from celery_llama.settings import Settings

__all__ = [
    "AsyncClient",
    "AsyncEventStream",
    "AsyncJobHandle",
    "CeleryLlamaError",
    "Choice",
    "Client",
    "EmbedFields",
    "EmbedJob",
    "Event",
    "Failed",
    "Finished",
    "GenerateFields",
    "GenerateJob",
    "GenerationFailed",
    "Heartbeat",
    "IdempotencyConflict",
    "InvalidJob",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobInfo",
    "JobNotFound",
    "JobTooLarge",
    "JsonSchema",
    "Message",
    "MissingExtra",
    "OutputMismatch",
    "Progress",
    "ResponseFormat",
    "Result",
    "ResultTimeout",
    "ServerUnreachable",
    "Settings",
    "Started",
    "StreamExpired",
    "TextPart",
    "Timings",
    "Token",
    "TokenLogprob",
    "UnreadableData",
    "Usage",
]

#: Where the names are that are imported when they are asked for.
_HOMES = {
    "client.async_client": {"AsyncClient", "AsyncJobHandle"},
    "client.async_stream": {"AsyncEventStream"},
    "client.client": {"Client", "JobHandle"},
    "protocol.embedding": {"EmbedJob"},
    "protocol.events": {"Event", "Failed", "Finished", "Heartbeat", "Progress", "Started", "Token"},
    "protocol.fields": {"EmbedFields", "GenerateFields"},
    "protocol.jobs": {"GenerateJob", "JsonSchema", "Message", "ResponseFormat", "TextPart"},
    "protocol.results": {"Choice", "JobError", "JobInfo", "Result", "Timings", "TokenLogprob", "Usage"},
    "settings": {"Settings"},
}


if not TYPE_CHECKING:  # a type checker that saw this would believe in any name

    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name in names:
                globals()[name] = value = getattr(import_module(f"{__name__}.{home}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
