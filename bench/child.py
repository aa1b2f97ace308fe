"""The bare loop in a process of its own, so that it can be stopped.

`python -m bench.child MODEL SLOTS CTX_PER_SLOT THREADS` answers each line of its input, a work, with the number of
tokens that came of it, and how many a second its decode steps alone gave.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.limit import BareLoop
from bench.stage import process
from bench.work import Work
from celery_llama_worker.engine.llama.model import LlamaModel


@dataclass(frozen=True)
class Child:
    """The process."""

    process: subprocess.Popen[bytes]

    def run(self, work: Work) -> int:
        """Do the work; returns how many tokens came."""
        return self._ask(work)[0]

    def decoded_per_second(self, work: Work) -> float:
        """Do the work; returns the tokens per second of its decode steps."""
        return self._ask(work)[1]

    def _ask(self, work: Work) -> tuple[int, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asdict(work)).encode() + b"\n")
        self.process.stdin.flush()
        tokens, rate = self.process.stdout.readline().split()
        return int(tokens), float(rate)


@contextmanager
def child(
    model: Path,
    slots: int,
    *,
    ctx_per_slot: int,
    threads: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Child]:
    """Such a process, loaded and warm."""
    command = [sys.executable, "-m", "bench.child", str(model), str(slots), str(ctx_per_slot), str(threads)]
    with (
        tempfile.TemporaryDirectory(prefix="bench-child-") as folder,
        process(command, Path(folder) / "log", environment, talks=True) as started,
    ):
        found = Child(started)
        found.run(Work([[1, 2, 3]], 2))
        yield found


def main() -> None:
    """Answer until the input ends."""
    path, (slots, ctx_per_slot, threads) = Path(sys.argv[1]), map(int, sys.argv[2:])
    with LlamaModel(path) as model, BareLoop(model, slots, ctx_per_slot=ctx_per_slot, threads=threads) as loop:
        for line in sys.stdin:
            done = loop.run(Work(**json.loads(line)))
            print(done.tokens, done.decoded_per_second, flush=True)


if __name__ == "__main__":
    main()
