"""The contract of celery-llama, and the client side of it. Imports no llama-cpp-python, and Celery only to send."""

from __future__ import annotations

from celery_llama.client.async_client import AsyncClient, AsyncJobHandle
from celery_llama.client.client import Client, JobHandle
from celery_llama.protocol.embedding import EmbedJob
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
from celery_llama.protocol.events import Event, Failed, Finished, Progress, Started, Token
from celery_llama.protocol.fields import EmbedFields, GenerateFields
from celery_llama.protocol.jobs import GenerateJob, JsonSchema, Message, ResponseFormat, TextPart
from celery_llama.protocol.results import Choice, JobError, JobInfo, Result, Timings, TokenLogprob, Usage
from celery_llama.settings import Settings

__all__ = [
    "AsyncClient",
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
