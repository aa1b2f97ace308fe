"""A job made ready for the engine, and what its readers are told of it. Plain data, made on the admit thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from celery_llama_worker.engine.attempt import A_co


@dataclass(frozen=True, slots=True)
class PreparedJob(Generic[A_co]):
    """An attempt, of the kind that the model's scheduler takes, and what its readers are told."""

    attempt: A_co
    prompt_tokens: int
    seed: int | None = None
    reproducible: bool | None = None
    choices: int = 1
    logprobs: bool = False
