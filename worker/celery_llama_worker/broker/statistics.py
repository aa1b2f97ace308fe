"""Figures for `inspect stats` and Flower's Pool tab. Read on the main thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery_llama_worker.engine.counters import Counters


class Statistics:
    """What this worker is, and what its engine has done so far."""

    def __init__(self, description: dict[str, Any], counters: Callable[[], Counters]) -> None:
        self._description = description
        self._counters = counters
        self._rate = _Rate()

    def __call__(self) -> dict[str, Any]:
        """The figures as they are now."""
        counters = self._counters()
        return {
            **self._description,
            "active": counters.active,
            "waiting": counters.waiting,
            "cells-used": counters.cells_used,
            "tokens-per-second": round(self._rate.since_last(counters.generated_tokens), 1),
            "generated-tokens": counters.generated_tokens,
            "prompt-tokens-read": counters.read_tokens,
            "prompt-tokens-copied": counters.copied_tokens,
            "set-aside": counters.set_aside,
            "steps": counters.steps,
            "largest-batch": counters.largest_batch,
            "full-batches": counters.full_batches,
        }


class _Rate:
    """Tokens per second between two looks."""

    def __init__(self) -> None:
        self._at, self._tokens, self._rate = time.monotonic(), 0, 0.0

    def since_last(self, tokens: int) -> float:
        now = time.monotonic()
        if now - self._at >= 1.0:
            self._rate = (tokens - self._tokens) / (now - self._at)
            self._at, self._tokens = now, tokens
        return self._rate
