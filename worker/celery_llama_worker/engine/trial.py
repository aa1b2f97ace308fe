"""Calls before there is a scheduler: the probe's, and those that measure the speed. Main thread, at start."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from celery_llama_worker.engine.pace import Speed
from celery_llama_worker.engine.plan import CallResult, Engine, Piece, Plan, Trim
from celery_llama_worker.errors import EngineFault

T = TypeVar("T")


def measure_speed(engine: Engine, n_vocab: int, tokens: int) -> Speed:
    """Read `tokens` in one call, of which nothing is left afterwards; raises EngineFault if the device cannot."""
    randomness = random.Random(0)
    text = [randomness.randrange(n_vocab) for _ in range(tokens)]

    def measure() -> Speed:
        for piece in (Piece(0, 0, text[:1], None), Piece(0, 0, text, None)):  # the first call has to fetch the weights
            (result,) = checked(engine.execute(Plan([Trim(0, 0)], [[piece]])))
        checked(engine.execute(Plan([Trim(0, 0)])))
        per_token = result.seconds / tokens
        return Speed(per_token, per_token * engine.limits.slots)

    return on_a_thread_of_its_own(measure)


def checked(results: Iterable[CallResult]) -> list[CallResult]:
    """All results of a plan; raises EngineFault if there is an error among them."""
    done = list(results)
    for result in done:
        if result.error is not None:
            raise EngineFault(f"the device cannot decode: {result.error.message}")
    return done


def on_a_thread_of_its_own(work: Callable[[], T]) -> T:
    """Run this on a thread that ends.

    libgomp counts the helpers of every living thread that has computed, and where there are more than cores, they sleep
    at each operation instead of spinning: a step of 8 rows took half as long again.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="trial") as thread:
        return thread.submit(work).result()
