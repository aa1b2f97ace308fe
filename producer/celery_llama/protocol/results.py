"""What a job ends with: the Celery result, and what the ledger keeps. No I/O, any thread."""

from __future__ import annotations

from typing import Any, Generic, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from typing_extensions import TypeVar

JobStatus = Literal["queued", "running", "completed", "incomplete", "cancelled", "failed"]
EndStatus = Literal["completed", "incomplete", "cancelled", "failed"]
FinishReason = Literal["stop", "length", "timeout", "cancelled"]

#: What the output was parsed as: a response model, None without one.
Parsed = TypeVar("Parsed", covariant=True, default=Any)

#: The states in which a job stays.
END_STATUSES: frozenset[str] = frozenset({"completed", "incomplete", "cancelled", "failed"})


class _Lenient(BaseModel):
    """Read side: a newer worker may say more than this version knows."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class TokenLogprob(_Lenient):
    """A token, its log-probability before sampling, and the likeliest alternatives."""

    id: int
    token: str
    bytes: list[int]
    """The token's bytes, for characters that span tokens."""
    logprob: float
    top_logprobs: list[TokenLogprob] = Field(default_factory=list)


class Choice(_Lenient):
    """One of the `n` texts of a job."""

    index: int = 0
    text: str = ""
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] | None = None


class Usage(_Lenient):
    """How many tokens were read, written, and found in the cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Timings(_Lenient):
    """Seconds as the worker saw them; `queued_s` compares two machines' clocks."""

    queued_s: float | None = None
    first_token_s: float | None = None
    total_s: float | None = None
    tokens_per_s: float | None = None
    """After the first event, which waits for the prompt; None without a second."""


class JobError(_Lenient):
    """Why a job failed: a code for the program, a line for the person."""

    code: str
    message: str


class Result(_Lenient, Generic[Parsed]):
    """The end of a job."""

    id: str
    status: EndStatus
    choices: list[Choice] = Field(default_factory=list)
    """Of an embedding job one without text: it says how the job ended."""
    embeddings: list[list[float]] | None = None
    """Of an embedding job that completed: a vector for each text, in the texts' order."""
    usage: Usage = Field(default_factory=Usage)
    timings: Timings = Field(default_factory=Timings)
    model: str | None = None
    seed: int | None = None
    reproducible: bool | None = None
    """Whether the worker vouches that the output did not depend on the job's neighbours."""
    attempts: int = 0
    """How many workers took the job up, this one included."""
    error: JobError | None = None

    _parsed: Any = PrivateAttr(default=None)

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text if self.choices else ""

    @property
    def finish_reason(self) -> FinishReason | None:
        """The first choice's finish reason."""
        return self.choices[0].finish_reason if self.choices else None

    @property
    def parsed(self) -> Parsed | None:
        """The instance of `response_model`, if one was given and the job completed."""
        parsed: Parsed | None = self._parsed
        return parsed


class JobInfo(_Lenient):
    """A job's state, as `status()` returns it. Times are Unix seconds of the Redis server's clock."""

    id: str
    status: JobStatus
    attempts: int = 0
    """How many workers took it up; the events of the last one carry this number."""
    created_unix_seconds: float | None = None
    started_unix_seconds: float | None = None
    """When the first worker took it up."""
    worker: str | None = None
    """The worker that runs it."""
    last_seq: int | None = None
    """Of its latest event; None without events, be it not yet or no more."""
    priority: int = 5
    cancel_requested: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict)
    error: JobError | None = None
    """Why it failed."""

    @property
    def ended(self) -> bool:
        """Whether it stays as it is."""
        return self.status in END_STATUSES
