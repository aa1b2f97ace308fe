"""Signals that come while the worker stops. Main thread."""

from __future__ import annotations

import signal


class SecondSignal:
    """Takes over the signals while the pool drains: any further one means that the rest is handed back now."""

    def __init__(self) -> None:
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._receive)

    def _receive(self, *_: object) -> None:
        self.received = True
