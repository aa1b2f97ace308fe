"""A side that computes in a process of its own, so that it can be stopped: the bare loop, or `Llama` one by one.

`python -m bench.child KIND MODEL SLOTS CTX_PER_SLOT THREADS` answers each line of its input, a work, with the
number of tokens that came of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.limit import BareLoop
from bench.stage import process
from bench.work import Work
from celery_llama_worker.engine.llama.model import LlamaModel

Kind = Literal["limit", "llama"]


@dataclass(frozen=True)
class Child:
    """The process."""

    process: subprocess.Popen[bytes]

    def run(self, work: Work) -> float:
        """Do the work; returns how many tokens came."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asdict(work)).encode() + b"\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


@contextmanager
def child(kind: Kind, model: Path, slots: int, ctx_per_slot: int, threads: int) -> Iterator[Child]:
    """Such a process, loaded and warm."""
    command = [sys.executable, "-m", "bench.child", kind, str(model), str(slots), str(ctx_per_slot), str(threads)]
    with (
        tempfile.TemporaryDirectory(prefix="bench-child-") as folder,
        process(command, Path(folder) / "log", talks=True) as started,
    ):
        found = Child(started)
        found.run(Work([[1, 2, 3]], 2))
        yield found


def main() -> None:
    """Answer until the input ends."""
    kind, model, numbers = sys.argv[1], Path(sys.argv[2]), [int(text) for text in sys.argv[3:]]
    with (_bare_loop if kind == "limit" else _llama)(model, *numbers) as run:
        for line in sys.stdin:
            print(run(Work(**json.loads(line))), flush=True)


@contextmanager
def _bare_loop(path: Path, slots: int, ctx_per_slot: int, threads: int) -> Iterator[Callable[[Work], int]]:
    with LlamaModel(path) as model, BareLoop(model, slots, ctx_per_slot=ctx_per_slot, threads=threads) as loop:
        yield lambda work: loop.run(work).tokens


@contextmanager
def _llama(path: Path, _slots: int, ctx: int, threads: int) -> Iterator[Callable[[Work], int]]:
    from llama_cpp import Llama

    llama = Llama(str(path), n_ctx=ctx, n_threads=threads, n_threads_batch=threads, verbose=False)

    def complete(prompt: list[int], max_tokens: int) -> int:
        answer: Any = llama.create_completion(prompt, max_tokens=max_tokens, temperature=0.0)
        return int(answer["usage"]["completion_tokens"])

    try:
        yield lambda work: sum(complete(list(prompt), work.max_tokens) for prompt in work.prompts)
    finally:
        llama.close()


if __name__ == "__main__":
    main()
