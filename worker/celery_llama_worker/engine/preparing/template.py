"""The model's chat template: a Jinja program from its file, run in Jinja's sandbox. Any thread; changes nothing.

What it is given and what it may do is Transformers', for which templates are written. A template is a program of
whoever made the model: what it raises becomes one line, and what it writes is counted while it writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from celery_llama_worker.errors import BadTemplate

#: What the template is given by us, and so not by a job.
_RESERVED = frozenset(
    {"self", "messages", "bos_token", "eos_token", "add_generation_prompt", "raise_exception", "strftime_now"}
)
_NEEDS_ESCAPE = re.compile(r"[^\x00-\x7f\ud800-\udfff]")


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; it writes what is in it."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One template; raises BadTemplate if it cannot be read."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(
            bos_token=bos_token,
            eos_token=eos_token,
            add_generation_prompt=True,
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
            # Some templates ask whether these are there by comparing them with nothing.
            functions=None,
            function_call=None,
            tools=None,
            tool_choice=None,
        )
        try:
            self._template = environment.from_string(source)
        except Exception as error:
            raise BadTemplate(f"this model's chat template is broken: {_one_line(error)}") from error

    def render(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any], most_characters: int) -> str:
        """The chat as the model was trained to see it; raises BadTemplate if it cannot be, or is too long."""
        if reserved := _RESERVED & options.keys():
            raise BadTemplate(f"chat_template_kwargs: {', '.join(sorted(reserved))} cannot be given")
        written, parts = 0, []
        try:
            for part in self._template.generate({**options, "messages": messages}):
                parts.append(part)
                written += len(part)
                if written > most_characters:
                    break
        except Exception as error:  # a template is a program and may raise anything
            raise BadTemplate(f"the chat template refused the messages: {_one_line(error)}") from error
        if written > most_characters:
            raise BadTemplate(f"the chat template wrote more than {most_characters:,} characters")
        return "".join(parts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter would write `<` for HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    # What hides a control token stands for a character that needs no escape (`special_texts.py`).
    return _NEEDS_ESCAPE.sub(lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> str:
    raise ValueError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _one_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
