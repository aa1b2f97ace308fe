"""Signals that come while the worker stops. Main thread."""

from __future__ import annotations

import signal


class Hurry:
    """Takes over the signals while the pool drains: any further one means that the rest is handed back now."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
