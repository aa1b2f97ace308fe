"""What the demo shows: one panel a job on a terminal, one line an event elsewhere. Main thread."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from celery_llama import Result
from celery_llama.protocol.events import AnyEvent

#: Lines of a panel; what does not fit scrolls.
_PANEL_LINES = 6


class Screen(Protocol):
    """Shows the demo."""

    def say(self, line: str) -> None:
        """A line of text."""

    def live(self) -> AbstractContextManager[object]:
        """While events come."""

    def show(self, name: str, event: AnyEvent) -> None:
        """An event of a job."""

    def summary(self, results: dict[str, Result], figures: dict[str, Any]) -> None:
        """All texts, and what the engine says of itself."""


def make_screen(names: Collection[str]) -> Screen:
    """Panels on a terminal, lines elsewhere."""
    console = Console(highlight=False)
    return _Panels(console, names) if console.is_terminal else _Lines(console, names)


class _Lines:
    def __init__(self, console: Console, names: Collection[str]) -> None:
        self._console = console
        self._width = max(len(name) for name in names)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def live(self) -> AbstractContextManager[object]:
        return nullcontext()

    def show(self, name: str, event: AnyEvent) -> None:
        what = repr(event.text) if event.type == "token" else f"-- {event.type}"
        self.say(f"{name:<{self._width}} {event.seq:>4} {what}")

    def summary(self, results: dict[str, Result], figures: dict[str, Any]) -> None:
        table = Table("job", "text", "end", "tokens", "first token", show_lines=True)
        for name, result in results.items():
            first = "" if result.timings.first_token_s is None else f"{result.timings.first_token_s:.2f} s"
            tokens = str(result.usage.completion_tokens)
            table.add_row(name, Text(result.text.strip()), result.finish_reason or result.status, tokens, first)
        self._console.print(table)
        if figures:
            self.say(
                f"Largest batch: {figures['largest-batch']} jobs in one step, of {figures['slots']} possible. "
                f"{figures['generated-tokens']} tokens took {figures['steps']} steps; one job after another, they "
                f"would have taken {figures['generated-tokens']}."
            )


class _Panels(_Lines):
    def __init__(self, console: Console, names: Collection[str]) -> None:
        super().__init__(console, names)
        self._texts = dict.fromkeys(names, "")
        self._states = dict.fromkeys(names, "waiting for the worker")
        self._live = Live(console=console, refresh_per_second=20)

    def live(self) -> AbstractContextManager[object]:
        self._live.update(self._render())
        return self._live

    def show(self, name: str, event: AnyEvent) -> None:
        self._texts[name] += event.text
        self._states[name] = {"token": "decoding"}.get(event.type, event.type)
        self._live.update(self._render())

    def _render(self) -> Columns:
        width = max(30, self._console.width // (4 if self._console.width > 150 else 2) - 2)
        rows = math.ceil(len(self._texts) / max(1, self._console.width // (width + 1)))
        # All panels at once, on a short terminal too; what does not fit would not be shown at all.
        lines = min(_PANEL_LINES, max(1, (self._console.height - 1) // rows - 2))
        return Columns([self._panel(name, width, lines) for name in self._texts])

    def _panel(self, name: str, width: int, height: int) -> Panel:
        lines = Text(self._texts[name].strip()).wrap(self._console, width - 4)[-height:]
        body = Text("\n").join(lines)
        done = self._states[name] in {"finished", "failed"}
        style = "green" if done else "default"
        return Panel(body, title=f"{name}: {self._states[name]}", width=width, height=height + 2, border_style=style)
