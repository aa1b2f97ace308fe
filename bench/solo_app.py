"""A peer: what one gets by putting `llama_cpp.Llama` behind Celery as it comes, one job after another.

`celery -A bench.solo_app worker --pool solo`
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from celery import Celery

app = Celery("solo", broker=os.environ.get("BENCH_URL"), backend=os.environ.get("BENCH_URL"))
app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)


@cache
def _model() -> Any:
    from llama_cpp import Llama

    ctx, threads = int(os.environ["BENCH_CTX"]), int(os.environ["BENCH_THREADS"])
    return Llama(os.environ["BENCH_MODEL"], n_ctx=ctx, n_threads=threads, n_threads_batch=threads, verbose=False)


@app.task  # type: ignore[untyped-decorator]
def generate(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """One completion; the answer as llama-cpp-python gives it."""
    answer: dict[str, Any] = _model().create_completion(prompt, max_tokens=max_tokens, temperature=0.0)
    return answer
