"""`python -m bench [PART ...]`: measure, then write docs/benchmarks.{json,md}. Main thread."""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import device, gpu, latency, peers, report, scenarios, spin, step_profile, throughput, weights
from bench.quiet import Referee
from bench.setting import Setting, describe
from celery_llama_worker.engine.llama.machine import usable_cores
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.model_files import resolve_model
from celery_llama_worker.settings import WorkerSettings

#: In the order in which a plain call measures them; the results have their names.
PARTS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "throughput": throughput.measure,
    "profile": step_profile.measure,
    "latency": latency.measure,
    "shared_prefix": scenarios.shared_prefix,
    "mixed_lengths": scenarios.mixed_lengths,
    "backlog": scenarios.backlog,
    "device": device.measure,
    "weights": weights.measure,
    "spin": spin.measure,
    "gpu": gpu.measure,
}


def main() -> int:
    """Measure what was asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes of the measurement are stopped too
    options = _parser().parse_args()
    out: Path = options.out or (
        Path(tempfile.gettempdir()) / "bench-quick.json" if options.quick else report.DOCS / "benchmarks.json"
    )
    results = report.load(out)
    with LlamaModel(resolve_model(WorkerSettings(model=options.model))) as loaded:
        setting = _setting(options, loaded)
        results["machine"] = describe(setting)
        for part in options.parts or PARTS:
            results[part] = PARTS[part](setting)
            now = datetime.datetime.now(datetime.UTC)
            results.setdefault("measured_at", {})[part] = now.isoformat(timespec="seconds")
            report.save(out, results)
    print(f"\nwritten: {out}, {out.with_suffix('.md').name}")
    return 0


def _setting(options: argparse.Namespace, model: LlamaModel) -> Setting:
    rounds, patience, tries = (1, 0, 1) if options.quick else (options.rounds, options.patience, 3 * options.rounds)
    return Setting(
        path=model.path,
        model=model,
        referee=Referee(rounds, patience, tries),
        threads=options.threads or usable_cores(),
        llama_server=peers.find_llama_server(options.llama_server),
        device_waits_in=options.device_waits_in,
        quick=options.quick,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see whether everything works")
    parser.add_argument("--model", default="demo", help="as celery-llama-worker takes it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine, each round")
    parser.add_argument("--threads", type=int, default=0, help="compute threads of every side; 0 is one a core")
    parser.add_argument("--llama-server", help="the command; else the one on the path")
    parser.add_argument("--device-waits-in", choices=["read", "decode"], default="read", help="of a pretended device")
    parser.add_argument("--out", type=Path, help="results and page; default docs/benchmarks.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
