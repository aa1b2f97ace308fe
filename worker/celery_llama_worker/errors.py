"""Errors of the worker: one line for the person, a code for the job's result, an exit code for the process.

CeleryLlamaError (celery_llama.protocol.errors)
├── PromptTooLong           context_length_exceeded
├── TextTooLong             context_length_exceeded
├── BadTemplate             invalid_request
├── BadGrammar              invalid_request
├── OtherModel              model_mismatch
├── EngineFault             engine_error
└── StartupError            the worker cannot start: wrong model file, no memory, unusable setting
"""

from __future__ import annotations

from celery_llama.protocol.errors import CeleryLlamaError, InvalidJob


class PromptTooLong(InvalidJob):
    """The prompt leaves no room for a token in a slot."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(prompt_tokens, limit_tokens)
        self.prompt_tokens, self.limit_tokens = prompt_tokens, limit_tokens

    def __str__(self) -> str:
        return (
            f"the prompt has {self.prompt_tokens} tokens; "
            f"this worker's slots have {self.limit_tokens} for prompt and output"
        )


class TextTooLong(InvalidJob):
    """A text to embed is longer than what the model reads."""

    code = "context_length_exceeded"

    def __init__(self, index: int, tokens: int, limit_tokens: int) -> None:
        super().__init__(index, tokens, limit_tokens)
        self.index, self.tokens, self.limit_tokens = index, tokens, limit_tokens

    def __str__(self) -> str:
        return f"input.{self.index}: the text has {self.tokens} tokens; this worker's model reads {self.limit_tokens}"


class BadTemplate(InvalidJob):
    """The model's chat template cannot render these messages."""


class BadGrammar(InvalidJob):
    """The grammar or JSON schema cannot be used."""


class OtherModel(CeleryLlamaError):
    """The job was begun with another model, or other adapters, than this worker has."""

    code = "model_mismatch"


class EngineFault(CeleryLlamaError):
    """The engine could not decode or sample this job."""

    code = "engine_error"


class StartupError(CeleryLlamaError):
    """The worker cannot start; the message says what to change."""

    code = "startup_error"
