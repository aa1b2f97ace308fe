"""Things to be done later on a thread that must not sleep. Owned by that thread; each wait has a timer thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

#: Runs something on the owner's thread; called by a timer's.
Submit = Callable[[Callable[[], None]], object]


class Postponed:
    """Actions that wait; all of it is for the owner's thread."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._waiting: dict[int, tuple[threading.Timer, Callable[[], None]]] = {}
        self._numbers = itertools.count()

    def put(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it on the owner's thread, once, when the time is over or `flush` is called."""
        number = next(self._numbers)
        timer = threading.Timer(seconds, self._submit, [lambda: self._do(number)])
        timer.daemon = True
        self._waiting[number] = timer, action
        timer.start()

    def flush(self) -> None:
        """Do at once what waits."""
        for number in list(self._waiting):
            self._do(number)

    def _do(self, number: int) -> None:
        if number in self._waiting:
            timer, action = self._waiting.pop(number)
            timer.cancel()
            action()
