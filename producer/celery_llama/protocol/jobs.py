"""What a job may ask for: strict pydantic models, the wire format of the task's `job` argument. No I/O, any thread.

Names are OpenAI's; what OpenAI lacks has llama-server's name and default. An unknown field is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.sampling import (
    MAX_INT,
    MAX_STOP_STRINGS,
    Count,
    SamplingOptions,
    Seconds,
    StopString,
    Strict,
)
from celery_llama.protocol.sampling import MAX_SEED as MAX_SEED

MAX_GRAMMAR_CHARACTERS = 65_536
MAX_CHOICES = 64
MAX_ADAPTERS = 8
MAX_TOP_LOGPROBS = 20

AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class TextPart(Strict):
    """One text part of a message's content."""

    type: Literal["text"]
    text: str
    """The text; parts follow each other without a line break."""


class Message(Strict):
    """One chat message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who says it; the model's chat template decides what it makes of each role."""
    content: str | list[TextPart]
    """What is said."""
    name: str | None = Field(default=None, max_length=64)
    """Given to the model's chat template, which may use it."""

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class JsonSchema(Strict):
    """A named JSON schema, as OpenAI's `response_format.json_schema`."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: str = Field(default="response", min_length=1, max_length=64)
    """For the caller; the model does not see it."""
    description: str | None = None
    """For the caller; the model does not see it."""
    schema_: dict[str, JsonValue] = Field(alias="schema")
    """The schema to which the text is held."""
    strict: bool | None = None
    """Accepted because OpenAI's clients send it; output is always held to the schema."""


class ResponseFormat(Strict):
    """What form the text must have."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    """Any text, any JSON object, or what the schema admits."""
    json_schema: JsonSchema | None = None
    """Required with `"json_schema"`, and only there."""

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema is required with type 'json_schema', and only there")
        return self


def one_or_many(value: Any) -> Any:
    """A text alone is a list of one."""
    return [value] if isinstance(value, str) else value


class Guidance(Strict):
    """Classifier-free guidance: the text is steered away from what would follow the negative prompt."""

    negative_prompt: str = Field(min_length=1)
    """With `prompt`, in its place; with `messages`, in place of the system message."""
    scale: float = Field(default=1.5, ge=0.0, le=100.0)
    """1 is no guidance; larger repels more."""


class LoraAdapter(Strict):
    """One of the worker's LoRA adapters, and how strongly it is applied."""

    name: AdapterName
    """The name under which the worker was given it."""
    scale: float = Field(default=1.0, ge=-100.0, le=100.0)
    """0 is without it."""


class QueueOptions(Strict):
    """What every job may say about its place in the queue."""

    priority: int = Field(default=5, ge=0, le=9)
    """0 is served first, 9 last."""
    timeout: Seconds | None = None
    """Seconds of running after which the job ends with what it has."""
    expires: Seconds | None = None
    """Seconds from submission until which the job must have begun."""
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=256)
    """Same key and body: the same job. Released when the job fails."""
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = Field(
        default_factory=dict, max_length=16
    )
    """Anything of the caller's; returned by `status`, never interpreted."""

    def body(self) -> dict[str, Any]:
        """The job as it goes over the wire: only what was set, in JSON types."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


J = TypeVar("J", bound=QueueOptions)


class GenerateJob(QueueOptions, SamplingOptions):
    """Text generation: a prompt or a chat, how to sample, what form the output must have."""

    # input
    prompt: str | Annotated[list[Count], Field(min_length=1)] | None = None
    """A text, or token ids, that the model continues; either this or `messages`."""
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    """A chat, written with the model's own template, that the model answers."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict, max_length=32)
    """Variables for the chat template; with `messages`."""
    special_tokens: Literal["text", "parse"] | None = None
    """`"text"`: a control token's name is text, the default in a chat; `"parse"`: it is that token, as in a prompt."""
    guidance: Guidance | None = None
    """Steer away from a negative prompt."""
    truncate: Literal["refuse", "left"] = "refuse"
    """What to do with a prompt that does not fit: `"left"` drops its beginning."""

    # length
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Most tokens of each text; without it, what fits into the slot."""
    stop: Annotated[list[StopString], BeforeValidator(one_or_many), Field(max_length=MAX_STOP_STRINGS)] = Field(
        default_factory=list
    )
    """Texts before which the text ends; one may be given without a list."""
    ignore_eos: bool = False
    """Go on where the model would end."""

    # output
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    """How many texts to write."""
    logprobs: bool = False
    """Give each token's log-probability, the model's own, before any sampling option."""
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    """How many of the likeliest tokens to give as well; with `logprobs`."""
    response_format: ResponseFormat = Field(default_factory=ResponseFormat)
    """Hold the text to JSON, or to a JSON schema."""
    grammar: str | None = Field(default=None, min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)
    """Hold the text to a grammar in GBNF, llama.cpp's grammar language; not beside `response_format`."""

    # model
    lora: Annotated[list[LoraAdapter], Field(max_length=MAX_ADAPTERS)] = Field(default_factory=list)
    """Which of the worker's LoRA adapters to apply."""
    reproducible: Literal["require"] | None = None
    """`"require"`: its output depends neither on its neighbours, alone if it must, nor on a worker that dies."""

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
