"""What `celery-llama` prints: text for people, or one JSON object a line for programs. Main thread."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import click

from celery_llama.protocol.events import Event, Failed, Finished, Token
from celery_llama.protocol.results import JobInfo, Result

#: As pydantic spells JSON.
_COMPACT = (",", ":")
#: Why a text was cut.
_CUT = {"length": "length: max_tokens, or its slot is full", "timeout": "timeout"}
#: What a terminal would obey rather than show; a model must not be able to say it.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Output:
    """Standard output for what was asked for, standard error for everything else."""

    as_json: bool = False
    #: Whether the first choice's text was begun.
    _begun: bool = False
    #: Texts of the second and later choices, which are shown when the first is complete.
    _others: dict[int, list[str]] = field(default_factory=dict)

    def line(self, value: dict[str, Any], text: str) -> None:
        """Print one answer."""
        self._write((json.dumps(value, ensure_ascii=False, separators=_COMPACT) if self.as_json else text) + "\n")

    def note(self, text: str) -> None:
        """Tell a person something."""
        if not self.as_json:
            click.echo(text, err=True)

    def error(self, code: str, message: str) -> None:
        """Say what went wrong."""
        if self.as_json:
            self.line({"error": {"code": code, "message": message}}, "")
        else:
            click.echo(f"Error: {_shown(message, sys.stderr.isatty())}", err=True)

    def event(self, event: Event) -> None:
        """Print an event: the first choice's text at once, the others' at the end."""
        if self.as_json:
            self._write(event.model_dump_json(exclude_none=True) + "\n")
        elif isinstance(event, Token):
            if event.choice == 0:
                self._begun = True
                self._write(event.text)
            else:
                self._others.setdefault(event.choice, []).append(event.text)
        elif event.terminal:
            self._end(event)

    def _end(self, event: Event) -> None:
        if self._begun:
            self._write("\n")
        if isinstance(event, Failed):
            self.error(event.error.code, event.error.message)
        elif isinstance(event, Finished):
            for index, parts in sorted(self._others.items()):
                self._choice(index, "".join(parts))
            self._status(event.status, event.finish_reason)

    def result(self, result: Result) -> None:
        """Print how a job ended."""
        if self.as_json:
            self._write(result.model_dump_json(exclude_none=True) + "\n")
            return
        for vector in result.embeddings or ():
            self._write(json.dumps(vector) + "\n")
        for choice in result.choices if result.embeddings is None else ():
            self._choice(choice.index, choice.text)
        if result.error is not None:
            self.error(result.error.code, result.error.message)
        else:
            self._status(result.status, [choice.finish_reason for choice in result.choices])

    def _status(self, status: str, reasons: Sequence[str | None]) -> None:
        """Say how a job ended whose text is not complete."""
        cut = [words for reason, words in _CUT.items() if reason in reasons]
        if status == "incomplete":
            self.note(f"incomplete ({'; '.join(cut)})" if cut else status)
        elif status != "completed":
            self.note(status)

    def info(self, info: JobInfo, *, short: bool) -> None:
        """Print a job's state, on one line if `short`."""
        if self.as_json:
            self._write(info.model_dump_json(exclude_none=True) + "\n")
        elif short:
            error = f"{info.error.code}: {info.error.message}" if info.error else ""
            self._write(f"{info.id}  {_time(info.created_unix_seconds)}  {error}\n")
        else:
            for name, value in _facts(info).items():
                self._write(f"{name:16} {value}\n")

    def _choice(self, index: int, text: str) -> None:
        heading = f"\n[{index + 1}]\n" if index else ""
        if heading or text:
            self._write(f"{heading}{text}\n")

    def _write(self, text: str) -> None:
        click.echo(_shown(text, sys.stdout.isatty()), nl=False)


def _shown(text: str, to_terminal: bool) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if to_terminal else text


def _facts(info: JobInfo) -> dict[str, Any]:
    """What there is to say of a job, by the name under which it is shown."""
    facts = {
        "id": info.id,
        "status": info.status,
        "attempts": info.attempts,
        "created": info.created_unix_seconds and _time(info.created_unix_seconds),
        "started": info.started_unix_seconds and _time(info.started_unix_seconds),
        "worker": info.worker,
        "priority": info.priority,
        "cancel requested": "yes" if info.cancel_requested else None,
        "metadata": ", ".join(f"{name}={value}" for name, value in info.metadata.items()) or None,
        "error": info.error and f"{info.error.code}: {info.error.message}",
    }
    return {name: value for name, value in facts.items() if value is not None}


def _time(unix_seconds: float | None) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if unix_seconds else "-"
