"""The events of a job: one compact JSON object each, the same bytes on the channel and in the stream.

No I/O, any thread. Writers use `encode_event`, readers `parse_event`; a reader ignores fields it does not know.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from celery_llama.protocol.results import EndStatus, FinishReason, JobError, Timings, TokenLogprob, Usage

VERSION = 1


class Event(BaseModel):
    """What every event carries."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    v: int = VERSION
    job_id: str = ""
    """The name of the channel says the job; the client adds it here."""
    attempt: int = Field(ge=0)
    """Which of the job's attempts wrote the event."""
    seq: int = Field(ge=1)
    """1, 2, 3 ... without gaps, across attempts."""
    type: str
    text: str = ""
    """New text; empty for everything but `token` events."""

    @property
    def terminal(self) -> bool:
        """Whether this is the job's last event."""
        return self.type in {"finished", "failed"}


class Started(Event):
    """A worker has taken up the job and knows its prompt."""

    type: Literal["started"]
    worker: str = ""
    model: str = ""
    fingerprint: str = ""
    """Of the model and the adapters that the job uses: who has another cannot go on with the job."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queued_s: float | None = None


class Progress(Event):
    """How much of a long prompt has been read."""

    type: Literal["progress"]
    read_tokens: int
    prompt_tokens: int


class Token(Event):
    """New text of one choice; more than one token when text was held back or Redis was slow."""

    type: Literal["token"]
    choice: int = 0
    tokens: list[int] = Field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    #: Set in the choice's last event, which may have no text.
    finish_reason: FinishReason | None = None


class Finished(Event):
    """The job ended with text: completed, incomplete or cancelled."""

    type: Literal["finished"]
    status: EndStatus
    finish_reason: list[FinishReason | None]
    """One per choice, in the choices' order."""
    usage: Usage = Field(default_factory=Usage)
    timings: Timings = Field(default_factory=Timings)


class Failed(Event):
    """The job ended with an error."""

    type: Literal["failed"]
    error: JobError


class Heartbeat(Event):
    """Nothing new for as long as the reader wanted to be told. Comes from the client, never over the wire."""

    attempt: int = Field(default=0, ge=0)
    """Of no attempt."""
    seq: int = Field(ge=0)
    """The last event's, from which the reader would go on."""
    type: Literal["heartbeat"] = "heartbeat"


AnyEvent = Annotated[Started | Progress | Token | Finished | Failed, Field(discriminator="type")]
_adapter: TypeAdapter[Started | Progress | Token | Finished | Failed] = TypeAdapter(AnyEvent)
#: Made once: `json.dumps` with options makes one each time, which doubles the cost of an event.
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def parse_event(raw: bytes | str, job_id: str = "") -> Started | Progress | Token | Finished | Failed:
    """Read an event; raises pydantic.ValidationError if it is none."""
    event = _adapter.validate_json(raw)
    return event.model_copy(update={"job_id": job_id}) if job_id else event


def encode_event(attempt: int, seq: int, kind: str, fields: dict[str, Any]) -> str:
    """Write an event; `fields` are JSON values. Built from a dict, not a model: this runs for every token."""
    return _encoder.encode({"v": VERSION, "attempt": attempt, "seq": seq, "type": kind, **fields})
