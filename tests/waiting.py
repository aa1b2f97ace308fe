"""The one way in which a test waits: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """Return the condition's first true value; raises TimeoutError, which says for what was waited."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:.0f} s still not: {what}")
        time.sleep(_POLL_SECONDS)
    return value
