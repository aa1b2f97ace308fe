"""A text does not show that its worker died, where output is reproducible and the job or the worker wants it so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stage import PATIENCE_SECONDS, Stage, wait_for_tokens, whole
from tests.scene import scene

#: Makes a job of two hundred tokens last a few seconds.
SLOWLY = 0.01
KINDS: list[dict[str, Any]] = [
    {},
    {"prompt": "and " * 40, "n": 2, "temperature": 0.9, "seed": 4},
    {"temperature": 1.0, "seed": 3, "repeat_penalty": 1.2, "top_k": 0},
    {"prompt": "and the other one", "temperature": 1.5, "logprobs": True},
]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with scene(stage.server, stage.workers):
        stage.server.start()
        yield stage
        stage.close()


@pytest.mark.parametrize("required", [True, False], ids=["the job wants it", "the worker does it"])
def test_after_a_kill_texts_are_what_they_would_have_been(stage: Stage, required: bool) -> None:
    options: dict[str, Any] = {"slots": 8, "exact_resume": not required}
    fields: dict[str, Any] = {"max_tokens": 200, **({"reproducible": "require"} if required else {})}
    # without one the id decides
    seeds = [{"seed": 7, **kind} for kind in KINDS]
    quick = stage.worker(**options)
    undisturbed = [stage.submit(**fields, **kind).result(PATIENCE_SECONDS) for kind in seeds]
    quick.stop()
    slow = stage.worker(step_seconds=SLOWLY, **options)
    jobs = [stage.submit(**fields, **kind) for kind in seeds]
    for job in jobs:
        wait_for_tokens(job, 20)

    slow.kill()
    stage.worker(**options)

    for job, expected in zip(jobs, undisturbed, strict=True):
        result = whole(job)
        assert result.attempts == 2
        assert (result.choices, result.reproducible) == (expected.choices, True)
