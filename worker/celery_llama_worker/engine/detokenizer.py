"""Bytes to text that may be shown: whole characters only, nothing that may be the beginning of a stop string.

Pure push objects, one a sequence, used on the engine thread. Feeding the same tokens again rebuilds the same state,
which is how a resumed job knows what was delivered and what was held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class Detokenizer:
    """Turns one sequence's tokens into text; `stopped` once a stop string has appeared."""

    def __init__(self, stop: Iterable[str] = ()) -> None:
        # A character may be spread over tokens; what can never become one is shown as U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._filter = StopFilter(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has appeared; from then on every text is empty."""
        return self._filter.stopped

    def feed(self, piece: bytes) -> str:
        """Take a token's bytes; returns the text that may be shown now."""
        return self._filter.feed(self._decoder.decode(piece))

    def finish(self) -> str:
        """The text that was held back, when no token will follow; an incomplete character at the end is dropped."""
        return self._filter.finish()


class StopFilter:
    """Ends the text before the stop string that begins first, and holds back what may yet become one.

    How the text was cut into feeds makes no difference: with stops `abc` and `b`, `ab` waits for what follows.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = [stop for stop in stops if stop]
        self._beginnings = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take text; returns what may be shown now."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        return self._show(self._held + text, more=True)

    def finish(self) -> str:
        """The text that was held back, when none will follow."""
        return self._show(self._held, more=False)

    def _show(self, text: str, *, more: bool) -> str:
        for at, character in enumerate(text):
            if character not in self._beginnings:
                continue
            if any(text.startswith(stop, at) for stop in self._stops):
                self.stopped, self._held = True, ""
                return text[:at]
            rest = text[at:]
            if more and any(stop.startswith(rest) for stop in self._stops):
                self._held = rest
                return text[:at]
        self._held = ""
        return text
