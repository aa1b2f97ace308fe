"""The kinds of job there are: which task runs a body, how it is read, how it is described. No I/O, any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from celery_llama.protocol.embedding import EmbedJob, parse_embed_job
from celery_llama.protocol.jobs import GenerateJob, parse_generate_job
from celery_llama.protocol.names import EMBED_TASK, GENERATE_TASK

Job = GenerateJob | EmbedJob


def task_of(body: Mapping[str, Any]) -> str:
    """The task that runs this body: an embedding job must have an `input`, and no other kind may."""
    return EMBED_TASK if "input" in body else GENERATE_TASK


def readable_body(raw: bytes) -> dict[str, Any]:
    """A ledger entry's body for a message; empty if it makes no sense: the worker goes by the ledger's."""
    try:
        body = from_json(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def parse_job(task: str, body: object) -> Job:
    """Validate a body for a task; raises InvalidJob."""
    return parse_embed_job(body) if task == EMBED_TASK else parse_generate_job(body)


def describe_job(body: Mapping[str, Any]) -> str:
    """A few words for Flower and the logs, such as "chat, 3 messages, max_tokens=64"; never any of the prompt."""
    messages, prompt, texts = body.get("messages"), body.get("prompt"), body.get("input")
    if isinstance(messages, list):
        words = ["chat", _count(messages, "message")]
    elif isinstance(prompt, str):
        words = ["prompt", f"{len(prompt)} characters"]
    elif isinstance(prompt, list):
        words = ["prompt", f"{len(prompt)} tokens"]
    elif texts is not None:
        words = ["embedding", _count(texts if isinstance(texts, list) else [texts], "text")]
    else:
        words = ["no prompt"]
    words += [f"{name}={body[name]}" for name in ("max_tokens", "n") if isinstance(body.get(name), int)]
    return ", ".join(words)


def _count(items: list[Any], noun: str) -> str:
    return f"{len(items)} {noun}{'s' * (len(items) != 1)}"
