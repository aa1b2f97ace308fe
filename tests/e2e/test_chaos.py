"""A short chaos run; `make chaos` does a long one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.scene import ROOT


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("seed", "workers"), [(1, 1), (2, 2)])
def test_whatever_is_killed_every_job_ends_once_and_every_stream_is_whole(seed: int, workers: int) -> None:
    options = {"seed": seed, "workers": workers, "jobs": 150, "faults": 14, "seconds": 40}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]

    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert done.returncode == 0, done.stdout + done.stderr
