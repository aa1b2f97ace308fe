"""What the command was given, as the fields of a job. Main thread."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import IO, Any

import click


def read_prompt(prompt: str | None) -> str:
    """The prompt, from standard input where it was not given."""
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("give a prompt, or - to read it from standard input")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError("standard input is not UTF-8 text") from error


def job_fields(
    prompt: str, *, system: str | None, json_schema: IO[str] | None, stop: tuple[str, ...], **plain: Any
) -> Any:
    """The job's fields; what was not given stays unset."""
    fields = {name: value for name, value in plain.items() if value is not None}
    if stop:
        fields["stop"] = list(stop)
    if json_schema is not None:
        try:
            schema = json.load(json_schema)
        except (ValueError, RecursionError) as error:
            raise click.UsageError("--json-schema: the file is not JSON") from error
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    if system is None:
        return {"prompt": prompt, **fields}
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}], **fields}


def metadata_of(given: Sequence[str]) -> dict[str, str]:
    """The metadata that was given as KEY=VALUE."""
    pairs = [text.partition("=") for text in given]
    if not all(key and equals for key, equals, _ in pairs):
        raise click.UsageError("--metadata: KEY=VALUE")
    return {key: value for key, _, value in pairs}
