"""What an embedding job may ask for: the wire format of `celery_llama.embed`'s `job` argument. No I/O, any thread."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from celery_llama.protocol.jobs import QueueOptions, one_or_many, parse_body

#: A result holds all vectors of its job, so a job's number of texts is bounded; larger sets are several jobs.
MAX_TEXTS = 256
MAX_DIMENSIONS = 65_536

EmbedText = Annotated[str, Field(min_length=1)]


class EmbedJob(QueueOptions):
    """Embedding: texts in, a vector for each."""

    input: Annotated[list[EmbedText], BeforeValidator(one_or_many), Field(min_length=1, max_length=MAX_TEXTS)]
    """The texts; one may be given without a list."""
    normalize: bool = True
    """Scale each vector to length 1."""
    dimensions: int | None = Field(default=None, ge=1, le=MAX_DIMENSIONS)
    """Keep only so many values of each vector, for models that were trained to be cut; cut before they are scaled."""
    truncate: Literal["refuse", "left", "right"] = "refuse"
    """What to do with a text that is too long: `"right"` drops its end, `"left"` its beginning."""


def parse_embed_job(body: object) -> EmbedJob:
    """Validate the body of a `celery_llama.embed` task; raises InvalidJob."""
    return parse_body(EmbedJob, body)
