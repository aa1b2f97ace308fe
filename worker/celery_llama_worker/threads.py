"""Threads whose failure ends the process: a worker with a dead part must not go on taking jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

Crash = Callable[[BaseException], None]


def vital_thread(name: str, target: Callable[[], None], crash: Crash) -> threading.Thread:
    """A daemon thread; whatever escapes from `target` is a bug of ours, and `crash` is called with it."""

    def run() -> None:
        try:
            target()
        except BaseException as error:
            logger.critical("the %s thread has failed", name, exc_info=True)
            crash(error)

    return threading.Thread(target=run, name=name, daemon=True)
