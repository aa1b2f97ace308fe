"""`python -m bench [PART ...]`: measure, then write docs/benchmarks.{json,md,svg}. Main thread."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import gpu, latency, model, peers, report, scenarios, spin, step_profile, throughput, weights
from bench.quiet import Referee
from bench.setting import Setting, describe
from celery_llama_worker.engine.llama.machine import usable_cores
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.model_files import resolve_model
from celery_llama_worker.settings import WorkerSettings

PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "throughput": throughput.measure,
    "profile": step_profile.measure,
    "latency": latency.measure,
    "scenarios": scenarios.measure,
    "weights": weights.measure,
    "spin": spin.measure,
    "shared_prefix": lambda setting: {"shared_prefix": scenarios.shared(setting)},
    "mixed_lengths": lambda setting: {"mixed_lengths": scenarios.lengths(setting)},
    "burst": lambda setting: {"burst": scenarios.burst(setting)},
    "backlog": lambda setting: {"backlog": scenarios.backlog(setting)},
}
#: What a plain call measures; the other parts are single ones of these.
ALL = ("throughput", "profile", "latency", "scenarios", "weights", "spin")


def main() -> int:
    """Measure what was asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes of the measurement are stopped too
    options = _parser().parse_args()
    parts = options.parts or [*ALL, "gpu"]
    if parts[0] == "model":
        print(model.write(Path(parts[3]), parts[1], parts[2]))
        return 0
    if unknown := set(parts) - PARTS.keys() - {"gpu", "report"}:
        print(f"bench: {', '.join(sorted(unknown))}: no such part; there are {', '.join([*PARTS, 'gpu'])}")
        return 2
    out = options.out or (
        Path(tempfile.gettempdir()) / "bench-quick.json" if options.quick else report.DOCS / "benchmarks.json"
    )
    results = report.load(out)
    if set(parts) - {"gpu", "report"}:
        path = resolve_model(WorkerSettings(model=options.model))
        with LlamaModel(path) as loaded:
            setting = Setting(
                path=path,
                model=loaded,
                referee=Referee(1, 0, 1)
                if options.quick
                else Referee(options.rounds, options.patience, 3 * options.rounds),
                threads=options.threads or usable_cores(),
                llama_server=peers.find_llama_server(options.llama_server),
                quick=options.quick,
            )
            results["machine"] = describe(setting)
            for part in (part for part in parts if part in PARTS):
                _add(results, part, PARTS[part](setting))
                report.save(out, results)
    if "gpu" in parts:
        results["gpu"] = gpu.measure()
    report.save(out, results)
    print(f"\nwritten: {out}, {out.with_suffix('.md').name}, {out.with_suffix('.svg').name}")
    return 0


def _add(results: dict[str, Any], part: str, figures: dict[str, Any]) -> None:
    """A single scenario goes where all of them go."""
    group = part if part in ALL else "scenarios"
    results.setdefault(group, {}).update(figures)
    results.setdefault("measured_at", {})[part] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}, gpu, report; or: model SHAPE TYPE FILE")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see whether everything works")
    parser.add_argument("--model", default="demo", help="as celery-llama-worker takes it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine, each round")
    parser.add_argument("--threads", type=int, default=0, help="compute threads of every side; 0 is one a core")
    parser.add_argument("--llama-server", help="the command; else the one on the path, else the wheel xllamacpp")
    parser.add_argument("--out", type=Path, help="results, page and plot; default docs/benchmarks.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
