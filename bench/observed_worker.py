"""A worker that says where its time goes: the product's classes, each with a clock around it.

`python -m bench.observed_worker start ...` is `celery-llama-worker start ...`; a line on its standard input is answered
with one JSON object of all counts so far. The clocks cost about 2 us a call. The product itself has no such code.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from celery_llama_worker import cli
from celery_llama_worker.assembly import Parts
from celery_llama_worker.bookkeeping.publisher import Publisher
from celery_llama_worker.engine.llama.engine import LlamaEngine
from celery_llama_worker.engine.outputs import Output, Text
from celery_llama_worker.engine.plan import CallResult, Piece
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.runner import Runner

P = ParamSpec("P")
R = TypeVar("R")


class Book:
    """All counts; written by the engine thread only."""

    def __init__(self) -> None:
        #: Of each block, without the blocks within it: so all of them together are the time that was clocked.
        self.wall_ns: dict[str, int] = defaultdict(int)
        #: Processor time of the engine thread alone.
        self.cpu_ns: dict[str, int] = defaultdict(int)
        self.counts: dict[str, int] = defaultdict(int)
        self._within_ns = 0, 0
        #: When the step's tokens were there.
        self.sampled_at_ns = 0
        #: Job, its token's number, when that was sampled.
        self.stamps: list[tuple[str, int, int]] = []
        self.said: dict[str, int] = defaultdict(int)
        self.scheduler: GenerateScheduler | None = None

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Count the time of a block."""
        (outer_cpu, outer_wall), self._within_ns = self._within_ns, (0, 0)
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        yield
        wall, cpu = time.perf_counter_ns() - wall, time.thread_time_ns() - cpu
        inner_cpu, inner_wall = self._within_ns
        self._within_ns = outer_cpu + cpu, outer_wall + wall
        self.wall_ns[name] += wall - inner_wall
        self.cpu_ns[name] += cpu - inner_cpu
        self.counts[name] += 1

    def timed(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """The function with a clock around it."""

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.clock(name):
                return function(*args, **kwargs)

        return call

    def snapshot(self) -> dict[str, Any]:
        """Everything, and what each thread of ours has used."""
        stamps, self.stamps = self.stamps, []
        counters = self.scheduler.counters if self.scheduler else None
        return {
            "at_ns": time.monotonic_ns(),
            "wall_ns": dict(self.wall_ns),
            "cpu_ns": dict(self.cpu_ns),
            "counts": dict(self.counts),
            "threads_ns": _threads_ns(),
            "generated_tokens": counters.generated_tokens if counters else 0,
            "stamps": stamps,
        }


def _threads_ns() -> dict[str, int]:
    """Processor time by thread; ggml's own are the difference to the process's."""
    used: dict[str, int] = defaultdict(int)
    for thread in threading.enumerate():
        path = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        if path.exists():
            used[thread.name.rstrip("0123456789_-")] += int(path.read_text().split()[0])
    return dict(used)


book = Book()


class ObservedEngine(LlamaEngine):
    """Counts decoding, sampling and filling."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._batch.fill = book.timed("fill", self._batch.fill)  # type: ignore[method-assign]

    def _decode(self, batch: Any) -> int:
        with book.clock("llama_decode"):
            return super()._decode(batch)

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        with book.clock("llama_decode"):  # which comes back before a GPU is done; the first read waits for it
            return super()._logits(rows)

    def _sample(self, pieces: Sequence[Piece]) -> CallResult:
        with book.clock("sample"):
            result = super()._sample(pieces)
        book.sampled_at_ns = time.monotonic_ns()
        return result


class ObservedScheduler(GenerateScheduler):
    """Counts planning and committing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.plan = book.timed("plan", self.plan)  # type: ignore[method-assign]
        self.commit = book.timed("commit", self.commit)  # type: ignore[method-assign]
        book.scheduler = self


class ObservedPublisher(Publisher):
    """Counts the hand-off, and notes when which token was there."""

    def put(self, outputs: list[Output]) -> None:
        """Publish what the engine says."""
        with book.clock("emit"):
            super().put(outputs)
        for output in outputs:
            if isinstance(output, Text):
                for _ in output.tokens:
                    book.said[output.job_id] += 1
                    book.stamps.append((output.job_id, book.said[output.job_id], book.sampled_at_ns))


class ObservedRunner(Runner[Any]):
    """Counts whole steps."""

    def _step(self) -> None:
        with book.clock("rest"):
            super()._step()

    def _take_commands(self) -> bool:
        if self._scheduler.idle:  # it waits for a job, which is nobody's time
            return super()._take_commands()
        with book.clock("commands"):
            return super()._take_commands()


def _answer(requests: Any, answers: Any) -> None:
    for _ in requests:
        answers.write(json.dumps(book.snapshot()) + "\n")
        answers.flush()


def work(engine: type[ObservedEngine]) -> None:
    """Be a worker made of the observed classes."""
    answers, sys.stdout = sys.stdout, sys.stderr
    threading.Thread(target=_answer, args=(sys.stdin, answers), daemon=True, name="bench").start()
    cli.main(Parts(engine, ObservedScheduler, ObservedPublisher, ObservedRunner))


if __name__ == "__main__":
    work(ObservedEngine)
