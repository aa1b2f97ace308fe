"""Workers with different models in one namespace: nobody goes on with a text that another model has begun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_llama.protocol.errors import JobFailed
from tests.e2e.stage import PATIENCE_SECONDS, Stage, wait_for_log, wait_for_tokens, whole
from tests.scene import scene
from tests.tiny_kinds import write_tiny_bytes
from tests.tiny_model import tiny_model, write_tiny_adapter, write_tiny_model

#: Makes a job of a few hundred tokens last a few seconds.
SLOWLY = 0.01
TEXT: dict[str, Any] = {"type": "text"}
LONG_STRING = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "minLength": 250}}}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with scene(stage.server, stage.workers):
        stage.server.start()
        yield stage
        stage.close()


@pytest.mark.parametrize("kind", ["other weights", "another vocabulary"])
@pytest.mark.parametrize("form", [TEXT, LONG_STRING], ids=["text", "schema"])
def test_what_one_model_has_begun_another_does_not_end(
    stage: Stage, tmp_path: Path, kind: str, form: dict[str, Any]
) -> None:
    first = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300, response_format=form, ignore_eos=form is TEXT)
    wait_for_tokens(job, 5)
    path = tmp_path / "other.gguf"
    other = write_tiny_model(path, seed=1) if kind == "other weights" else write_tiny_bytes(path, "gpt-2")

    first.kill()
    second = stage.worker(model=other)

    with pytest.raises(JobFailed) as failed:
        job.result(PATIENCE_SECONDS)
    assert failed.value.failure_code == "model_mismatch"
    assert failed.value.result.text, "what was said is still there"
    assert second.exit_code is None


def test_a_job_goes_to_the_worker_that_has_its_model(stage: Stage, tmp_path: Path) -> None:
    first = stage.worker(step_seconds=SLOWLY)
    job = stage.submit(max_tokens=300)
    wait_for_tokens(job, 5)
    third = stage.worker()
    wait_for_log(third, "fingerprint")
    stage.worker(model=write_tiny_model(tmp_path / "other.gguf", seed=1))

    first.kill()

    result = whole(job)
    assert (result.status, result.usage.completion_tokens, result.model) == ("incomplete", 300, tiny_model().stem)


def test_another_adapter_under_the_same_name_is_another_model(stage: Stage, tmp_path: Path) -> None:
    blue, red = (write_tiny_adapter(tmp_path / f"{name}.gguf", seed=seed) for seed, name in enumerate(("blue", "red")))
    first = stage.worker(step_seconds=SLOWLY, lora=f"style={blue}")
    with_it, without = stage.submit(max_tokens=300, lora=[{"name": "style"}]), stage.submit(max_tokens=300)
    wait_for_tokens(with_it, 5)
    wait_for_tokens(without, 5)

    first.kill()
    stage.worker(lora=f"style={red}")

    assert whole(without).status == "incomplete"
    with pytest.raises(JobFailed) as failed:
        with_it.result(PATIENCE_SECONDS)
    assert failed.value.failure_code == "model_mismatch"
