"""What a job may ask for: strict pydantic models, the wire format of the task's `job` argument. No I/O, any thread.

Names are OpenAI's; what OpenAI lacks has llama-server's name and default. An unknown field is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from producer.errors import InvalidJob

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_GRAMMAR_CHARACTERS = 65_536
MAX_CHOICES = 64
MAX_ADAPTERS = 8
MAX_TOP_LOGPROBS = 20
#: llama.cpp reads 0xFFFFFFFF as "choose at random", so a seed that is to be reproduced stays below it.
MAX_SEED = 0xFFFF_FFFE
#: What fits a C int, and a timer.
MAX_INT, MAX_SECONDS = 0x7FFF_FFFF, 10_000_000.0

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Seconds = Annotated[float, Field(gt=0.0, le=MAX_SECONDS)]
AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(_Strict):
    """One text part of a message's content."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """One chat message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = Field(default=None, max_length=64)

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class JsonSchema(_Strict):
    """A named JSON schema, as OpenAI's `response_format.json_schema`."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: str = Field(default="response", min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, JsonValue] = Field(alias="schema")
    #: Accepted because OpenAI's clients send it; output is always held to the schema.
    strict: bool | None = None


class ResponseFormat(_Strict):
    """What form the text must have."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is required with type 'json_schema', and only there")
        return self


def one_or_many(value: Any) -> Any:
    """A text alone is a list of one."""
    return [value] if isinstance(value, str) else value


class Guidance(_Strict):
    """Classifier-free guidance: the text is steered away from what would follow the negative prompt."""

    #: With `prompt`, in its place; with `messages`, in place of the system message.
    negative_prompt: str = Field(min_length=1)
    #: 1 is no guidance; larger repels more.
    scale: float = Field(default=1.5, ge=0.0, le=100.0)


class LoraAdapter(_Strict):
    """One of the worker's LoRA adapters, and how strongly it is applied."""

    name: AdapterName
    #: 0 is without it.
    scale: float = Field(default=1.0, ge=-100.0, le=100.0)


class QueueOptions(_Strict):
    """What every job may say about its place in the queue."""

    #: 0 is served first, 9 last.
    priority: int = Field(default=5, ge=0, le=9)
    #: Seconds of running after which the job ends with what it has.
    timeout: Seconds | None = None
    #: Seconds from submission until which the job must have begun.
    expires: Seconds | None = None
    #: Same key and body: the same job. Released when the job fails.
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=256)
    #: Anything of the caller's; returned by `status`, never interpreted.
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = Field(
        default_factory=dict, max_length=16
    )

    def body(self) -> dict[str, Any]:
        """The job as it goes over the wire: only what was set, in JSON types."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


J = TypeVar("J", bound=QueueOptions)


class GenerateJob(QueueOptions):
    """Text generation: a prompt or a chat, how to sample, what form the output must have."""

    # input
    prompt: str | Annotated[list[Count], Field(min_length=1)] | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict, max_length=32)

    guidance: Guidance | None = None
    #: What to do with a prompt that does not fit: "left" drops its beginning.
    truncate: Literal["refuse", "left"] = "refuse"

    # length
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    stop: Annotated[list[StopString], BeforeValidator(one_or_many), Field(max_length=MAX_STOP_STRINGS)] = Field(
        default_factory=list
    )
    ignore_eos: bool = False

    # sampling
    temperature: float = Field(default=0.8, ge=0.0, le=100.0)
    top_p: Probability = 0.95
    top_k: Count = 40
    min_p: Probability = 0.05
    typical_p: Probability = 1.0
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    repeat_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    repeat_last_n: int = Field(default=64, ge=0, le=65_536)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    dry_multiplier: float = Field(default=0.0, ge=0.0, le=100.0)
    dry_base: float = Field(default=1.75, ge=1.0, le=100.0)
    dry_allowed_length: Count = 2
    dry_penalty_last_n: int = Field(default=-1, ge=-1, le=MAX_INT)
    dry_sequence_breakers: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] = Field(
        default_factory=lambda: ["\n", ":", '"', "*"]
    )
    xtc_probability: Probability = 0.0
    xtc_threshold: Probability = 0.1
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = Field(default=5.0, ge=0.0, le=100.0)
    mirostat_eta: float = Field(default=0.1, gt=0.0, le=10.0)
    #: Token id, as a decimal string as in OpenAI's API, to the value that is added to its logit.
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=1024
    )

    # output
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat = Field(default_factory=ResponseFormat)
    #: GBNF, llama.cpp's grammar language.
    grammar: str | None = Field(default=None, min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)

    # model
    lora: Annotated[list[LoraAdapter], Field(max_length=MAX_ADAPTERS)] = Field(default_factory=list)
    #: "require": the job runs so that its output does not depend on its neighbours, alone if it must.
    reproducible: Literal["require"] | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.prompt == "":
            raise ValueError("the prompt is empty")
        if self.messages is None and self.chat_template_kwargs:
            raise ValueError("chat_template_kwargs goes with messages")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.grammar is not None and self.response_format.type != "text":
            raise ValueError("give either grammar or response_format")
        if len({adapter.name for adapter in self.lora}) < len(self.lora):
            raise ValueError("lora: an adapter may be named once")
        return self


def parse_generate_job(body: object) -> GenerateJob:
    """Validate the body of a `celery_llama.generate` task; raises InvalidJob."""
    return parse_body(GenerateJob, body)


def parse_body(kind: type[J], body: object) -> J:
    """Validate a job body; raises InvalidJob with one line that names the fields but does not repeat their contents."""
    try:
        job = kind.model_validate(body)
        encode_body(job.body()).encode()
        return job
    except ValidationError as error:
        raise InvalidJob(describe_validation_error(error, kind.model_fields)) from error
    except UnicodeEncodeError as error:
        raise InvalidJob("a text is not valid Unicode: it has half of a surrogate pair") from error
    except RecursionError as error:
        raise InvalidJob("the job is nested too deeply") from error


def encode_body(body: Mapping[str, Any]) -> str:
    """The body's one spelling: what the ledger keeps, what is digested, and what counts against the size limit.

    Keys stay in their order: a schema's properties are generated in theirs.
    """
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def describe_validation_error(error: ValidationError, fields: Collection[str] = ()) -> str:
    """One line for a person: where and what, never the offending value (it may be a prompt).

    For a name that is none of `fields`, the one that may have been meant.
    """
    problems = []
    for item in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        where = ".".join(str(part) for part in item["loc"][:4])
        what = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            meant = get_close_matches(where, fields if len(item["loc"]) == 1 else (), n=1, cutoff=0.64)
            what = f"unknown field, did you mean {meant[0]}?" if meant else "unknown field"
        problems.append(f"{where}: {what}" if where else what)
    return "; ".join(problems)
