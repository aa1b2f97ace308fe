"""What a worker says of itself in its lease. No I/O, any thread."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class WorkerFacts(BaseModel):
    """What others may have to know of a living worker; a newer worker may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    model: str = ""
    """The model's name, as results have it."""
    fingerprint: str = ""
    """Of the model and its adapters: equal for workers that may go on with each other's jobs; empty if unknown."""
    kind: Literal["generate", "embed"] = "generate"
    """What the model is for."""
    slots: int = 0
    """Sequences that it decodes together."""
    reproducible: bool | None = None
    """Whether its output does not depend on a job's neighbours."""
    started: float | None = None
    """Since when it is there, in Unix seconds of its own clock."""


def read_facts(lease: bytes) -> WorkerFacts:
    """Read a lease's value; a worker that says what this version cannot read is alive all the same."""
    try:
        return WorkerFacts.model_validate_json(lease)
    except ValueError:
        return WorkerFacts()
