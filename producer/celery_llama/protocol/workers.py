"""What a worker says of itself in its lease. No I/O, any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class WorkerFacts(BaseModel):
    """What others may have to know of a living worker; a newer worker may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    model: str = ""
    """The model's name, as results have it."""
    fingerprint: str = ""
    """Of the model: equal for workers that may go on with each other's jobs; empty if unknown."""
    adapters: dict[str, str] = Field(default_factory=dict)
    """The fingerprints of its LoRA adapters, by name."""
    kind: Literal["generate", "embed"] = "generate"
    """What the model is for."""
    slots: int = 0
    """Sequences that it decodes together."""
    reproducible: bool | None = None
    """Whether its output does not depend on a job's neighbours."""
    started: float | None = None
    """Since when it is there, in Unix seconds of its own clock."""

    def fingerprint_with(self, adapters: Iterable[str]) -> str:
        """Of the model with these adapters, as `started` events have it; empty if it has not all of them."""
        names = sorted(adapters)
        if not self.fingerprint or not self.adapters.keys() >= set(names):
            return ""
        return "+".join([self.fingerprint, *(self.adapters[name] for name in names)])


def read_facts(lease: bytes) -> WorkerFacts:
    """Read a lease's value; a worker that says what this version cannot read is alive all the same."""
    try:
        return WorkerFacts.model_validate_json(lease)
    except ValueError:
        return WorkerFacts()
