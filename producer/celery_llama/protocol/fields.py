"""What `submit` and `embed` take by name, for type checkers. Written by `make format` from the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from celery_llama.protocol.jobs import Guidance, LoraAdapter, Message, ResponseFormat


class QueueFields(TypedDict, total=False):
    """What every job may say about its place in the queue."""

    priority: int
    """0 is served first, 9 last."""
    timeout: float | None
    """Seconds of running after which the job ends with what it has."""
    expires: float | None
    """Seconds from submission until which the job must have begun."""
    idempotency_key: str | None
    """Same key and body: the same job. Released when the job fails."""
    metadata: dict[str, str]
    """Anything of the caller's; returned by `status`, never interpreted."""


class GenerateFields(QueueFields, total=False):
    """Text generation: a prompt or a chat, how to sample, what form the output must have."""

    temperature: float
    """How far to stray from the likeliest token; 0 always takes it."""
    top_p: float
    """Choose among the likeliest tokens that together have this probability; 1 is off."""
    top_k: int
    """Choose among so many of the likeliest tokens; 0 is off."""
    min_p: float
    """Leave out tokens that are less likely than this share of the likeliest; 0 is off."""
    typical_p: float
    """Choose among tokens about as surprising as is to be expected, of this probability together; 1 is off."""
    seed: int | None
    """Makes the choices repeatable; without it, one is made from the job's id and told in the result."""
    repeat_penalty: float
    """Makes tokens that were there lately less likely, by this factor; 1 is off."""
    repeat_last_n: int
    """How many of the last tokens the repeat, presence and frequency penalties look at; 0 switches them off."""
    presence_penalty: float
    """Subtracted from the scores of tokens that were there lately."""
    frequency_penalty: float
    """Subtracted from a token's score for each time that it was there lately."""
    dry_multiplier: float
    """Strength of DRY, a penalty on repeating whole sequences; 0 is off."""
    dry_base: float
    """How fast DRY's penalty grows with the length of what is repeated."""
    dry_allowed_length: int
    """Sequences up to this length are repeated without DRY's penalty."""
    dry_penalty_last_n: int
    """How many of the last tokens DRY looks at; -1 is all, 0 switches it off."""
    dry_sequence_breakers: list[str]
    """Texts over which DRY does not look back."""
    xtc_probability: float
    """How often XTC leaves out the likeliest tokens; 0 is off."""
    xtc_threshold: float
    """How likely a token must be for XTC to leave it out; the least likely of these stays."""
    mirostat: Literal[0, 1, 2]
    """1 or 2: Mirostat of this version, in place of all of these but temperature, seed and logit_bias; 0 is off."""
    mirostat_tau: float
    """The surprise that Mirostat aims at."""
    mirostat_eta: float
    """How fast Mirostat adapts."""
    logit_bias: dict[str, float]
    """Token id, as a decimal string as in OpenAI's API, to the value that is added to its logit."""
    prompt: str | list[int] | None
    """A text, or token ids, that the model continues; either this or `messages`."""
    messages: Sequence[Message | dict[str, Any]] | None
    """A chat, written with the model's own template, that the model answers."""
    chat_template_kwargs: dict[str, Any]
    """Variables for the chat template; with `messages`."""
    special_tokens: Literal["text", "parse"] | None
    """`"text"`: a control token's name is text, the default in a chat; `"parse"`: it is that token, as in a prompt."""
    guidance: Guidance | dict[str, Any] | None
    """Steer away from a negative prompt."""
    truncate: Literal["refuse", "left"]
    """What to do with a prompt that does not fit: `"left"` drops its beginning."""
    max_tokens: int | None
    """Most tokens of each text; without it, what fits into the slot."""
    stop: str | list[str]
    """Texts before which the text ends; one may be given without a list."""
    ignore_eos: bool
    """Go on where the model would end."""
    n: int
    """How many texts to write."""
    logprobs: bool
    """Give each token's log-probability, the model's own, before any sampling option."""
    top_logprobs: int
    """How many of the likeliest tokens to give as well; with `logprobs`."""
    response_format: ResponseFormat | dict[str, Any]
    """Hold the text to JSON, or to a JSON schema."""
    grammar: str | None
    """Hold the text to a grammar in GBNF, llama.cpp's grammar language; not beside `response_format`."""
    lora: Sequence[LoraAdapter | dict[str, Any]]
    """Which of the worker's LoRA adapters to apply."""
    reproducible: Literal["require"] | None
    """`"require"`: its output depends neither on its neighbours, alone if it must, nor on a worker that dies."""


class EmbedFields(QueueFields, total=False):
    """Embedding: texts in, a vector for each."""

    normalize: bool
    """Scale each vector to length 1."""
    dimensions: int | None
    """Keep only so many values of each vector, for models that were trained to be cut; cut before they are scaled."""
    truncate: Literal["refuse", "left", "right"]
    """What to do with a text that is too long: `"right"` drops its end, `"left"` its beginning."""
