"""A pydantic model in, an instance out: client, queue, worker, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from celery_llama.protocol.errors import JobFailed
from tests.e2e.stage import PATIENCE_SECONDS, Stage
from tests.scene import scene


class Leg(BaseModel):
    """A part of the whole."""

    side: Literal["left", "right"]
    shoe: bool | None


class Animal(BaseModel):
    """Every text of it is short, so that even a model of random weights comes to its end."""

    kind: Literal["cat", "dog"]
    age: Annotated[int, Field(ge=0, lt=40)]
    share: Annotated[float, Field(gt=0, le=1)]
    code: Annotated[str, Field(pattern=r"^[A-F]{2}\d$")]
    legs: list[Leg] = Field(min_length=1, max_length=2)
    nick: Annotated[str, Field(max_length=4)] | None = None


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with scene(stage.server, stage.workers):
        yield stage
        stage.close()


def test_instances_come_back_and_a_truncated_one_is_incomplete(stage: Stage) -> None:
    stage.server.start()
    stage.worker()

    jobs = [
        stage.client.submit(prompt="An animal:", response_model=Animal, seed=seed, temperature=1.5) for seed in range(6)
    ]
    cut = stage.client.submit(prompt="An animal:", response_model=Animal, max_tokens=5)

    results = [job.result(PATIENCE_SECONDS) for job in jobs]
    assert [result.status for result in results] == ["completed"] * 6
    assert all(isinstance(result.parsed, Animal) for result in results)
    assert len({result.text for result in results}) > 1
    truncated = cut.result(PATIENCE_SECONDS)
    assert (truncated.status, truncated.finish_reason, truncated.parsed) == ("incomplete", "length", None)


def test_a_model_that_output_cannot_be_held_to_fails_with_the_reason(stage: Stage) -> None:
    class Even(BaseModel):
        number: Annotated[int, Field(multiple_of=2)]

    stage.server.start()
    stage.worker()

    result = stage.client.submit(prompt="x", response_model=Even)

    with pytest.raises(JobFailed, match="multipleOf"):
        result.result(PATIENCE_SECONDS)
