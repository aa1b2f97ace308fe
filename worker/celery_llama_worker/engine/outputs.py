"""What the engine tells the publisher: plain data, put on a queue by the engine thread and read by the publisher's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from celery_llama.protocol.results import FinishReason, JobError
from celery_llama_worker.engine.plan import Sampled, Values

EndReason = Literal["done", "timeout", "cancelled", "failed", "handed_back", "dropped"]


@dataclass(frozen=True, slots=True)
class Began:
    """The attempt has its first slot."""

    job_id: str
    attempt: int
    #: Prompt tokens that were found in the cells of another sequence.
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Read:
    """Another part of a long prompt has been read."""

    job_id: str
    attempt: int
    read_tokens: int


@dataclass(frozen=True, slots=True)
class Text:
    """New text of one choice, and the tokens it is made of."""

    job_id: str
    attempt: int
    choice: int
    text: str
    tokens: Sequence[Sampled]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Departed:
    """What earlier attempts said was drawn again, and was something else here: so may be what follows."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Vector:
    """The vector of one text of an embedding job, as the job wants it."""

    job_id: str
    attempt: int
    index: int
    values: Values


@dataclass(frozen=True, slots=True)
class Ended:
    """The attempt is over; nothing more comes from it."""

    job_id: str
    attempt: int
    reason: EndReason
    error: JobError | None = None


Output = Began | Read | Text | Departed | Vector | Ended
