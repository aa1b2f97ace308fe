"""How long ggml's threads should spin before they sleep: GOMP_SPINCOUNT, on a quiet machine and beside a neighbour.

libgomp reads the variable when it is loaded, so each value has a process of its own: `python -m bench.spin MODEL SLOTS
TOKENS THREADS` answers each line of its input with tokens per second of the bare loop's decode steps. With the argument
`shared` another thread has computed before and still lives: then libgomp counts more threads than there are cores and
hardly spins at all.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.limit import BareLoop
from bench.quiet import in_turn
from bench.setting import Setting
from bench.stage import process
from bench.work import distinct
from celery_llama_worker.engine.llama.model import LlamaModel

_VALUES = ("", "100", "1000", "10000", "100000")


def measure(setting: Setting) -> dict[str, Any]:
    """Decoded tokens/s by value: alone, and beside a process that takes a fifth of a core."""
    return {name: _values(setting, busy) for name, busy in (("alone", 0.0), ("neighbour of 0.2 cores", 0.2))}


def _values(setting: Setting, busy: float) -> dict[str, Any]:
    slots, tokens = setting.size(8, 2), setting.size(48, 8)
    print(f"\nGOMP_SPINCOUNT, {slots} sequences, a neighbour of {busy} cores")
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spin-"))) / "log"
        sides: dict[str, Callable[[], float]] = {}
        for name in (*_VALUES, "shared"):
            command = [sys.executable, "-m", "bench.spin", str(setting.path), str(slots), str(tokens)]
            command += [str(setting.threads), name]
            environment = {"GOMP_SPINCOUNT": name} if name.isdigit() else {}
            child = stack.enter_context(process(command, log, environment, talks=True))
            assert child.stdin is not None
            assert child.stdout is not None
            sides[name or "default"] = _asking(child.stdin, child.stdout)
        if busy:
            neighbour = (
                f"import time\nwhile 1:\n e = time.perf_counter() + {busy / 50}\n while time.perf_counter() < e: 0\n"
            )
            neighbour += f" time.sleep({(1 - busy) / 50})"
            stack.enter_context(process([sys.executable, "-c", neighbour], log))
        rounds = setting.referee.play(in_turn(sides))
    return rounds.figures(
        unit="tokens/s", **{f"{name}/default": round(rounds.ratio(name, "default"), 3) for name in sides}
    )


def _asking(questions: Any, answers: Any) -> Callable[[], float]:
    def ask() -> float:
        questions.write(b"go\n")
        questions.flush()
        return float(answers.readline())

    return ask


def main() -> None:
    """Answer until the input ends."""
    path, slots, tokens, threads, name = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    with LlamaModel(Path(path)) as model, BareLoop(model, slots, threads=threads) as loop:
        work = distinct(model, slots, 64, tokens)

        def answer() -> None:
            for _ in sys.stdin:
                print(loop.run(work).decoded_per_second, flush=True)

        if name == "shared":
            loop.run(distinct(model, 1, 8, 2))
            thread = threading.Thread(target=answer)
            thread.start()
            thread.join()
        else:
            answer()


if __name__ == "__main__":
    main()
