"""`make chaos`, `python -m tests.chaos`: kill workers, connections and servers at random while jobs run, then count.

Prints the seed; the same seed draws the same faults and the same jobs. Exit code 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Chaos, Options, Report
from tests.tiny_model import tiny_model


def main() -> int:
    """Parse the options, run, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(100_000))
    parser.add_argument("--seconds", type=float, default=600.0, help="no more faults after this time")
    parser.add_argument("--jobs", type=int, default=1_000, help="at least")
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2, choices=(1, 2, 3))
    parser.add_argument("--model", default="", help="a GGUF file or 'demo'; a tiny generated model if not given")
    parser.add_argument("--folder", type=Path, help="where logs and data are kept; else they are deleted")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)7.0f ms  %(message)s", stream=sys.stderr)
    print(f"seed {given.seed}, {given.workers} worker(s), {given.jobs} jobs, {given.faults} faults", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model = given.model or str(tiny_model())
        options = Options(given.seed, given.seconds, given.jobs, given.faults, given.workers, model, folder)
        report = Chaos(options).run()
    describe(report)
    return 1 if report.findings.violations else 0


def describe(report: Report) -> None:
    """Print the report."""
    findings, tally = report.findings, report.tally

    def counts(of: dict[str, int] | dict[int, int]) -> str:
        return ", ".join(f"{what} {count}" for what, count in sorted(of.items(), key=lambda item: -item[1])) or "none"

    print(f"{findings.jobs} jobs in {report.seconds:.0f} s ({counts(tally.kinds)})")
    print(f"  faults    {report.faults.total()}: {counts(report.faults)}")
    print(f"  ended     {counts(findings.statuses)}")
    print(f"  errors    {counts(findings.errors)}")
    print(f"  attempts  {counts(findings.attempts)}")
    print(f"  producers {len(tally.accepted)} accepted, {tally.unsure} without answer, {tally.cancelled} cancels")
    print(f"  readers   {len(tally.read)} streams read live")
    print(f"  logs      {counts(report.log_lines)}")
    if findings.violations:
        print(f"{len(findings.violations)} VIOLATIONS")
        for violation in findings.violations[:100]:
            print(f"  {violation}")
    else:
        print("every job ended exactly once, every stream is whole, nothing is left")


if __name__ == "__main__":
    sys.exit(main())
