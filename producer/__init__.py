"""The contract of celery-llama, and the client side of it. Imports no llama-cpp-python, and Celery only to send."""

from __future__ import annotations

from producer.async_client import AsyncClient, AsyncJobHandle
from producer.client import Client, JobHandle
from producer.embedding import EmbedJob
from producer.errors import (
    CeleryLlamaError,
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
from producer.events import Event, Failed, Finished, Progress, Started, Token
from producer.jobs import GenerateJob, JsonSchema, Message, ResponseFormat, TextPart
from producer.results import Choice, JobError, JobInfo, Result, Timings, TokenLogprob, Usage
from producer.settings import Settings

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "CeleryLlamaError",
    "Choice",
    "Client",
    "EmbedJob",
    "Event",
    "Failed",
    "Finished",
    "GenerateJob",
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
