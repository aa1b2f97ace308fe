"""Workers on models of several kinds: embeddings from many jobs, LoRA adapters; what does not fit is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from celery_llama.client.client import JobHandle
from celery_llama.protocol.errors import JobFailed
from celery_llama.protocol.events import Finished, Started
from tests.e2e.stage import (
    PATIENCE_SECONDS,
    Stage,
    stream,
    wait_for_celery,
    wait_for_log,
    wait_for_status,
    wait_for_tokens,
    whole,
)
from tests.scene import ROOT, scene
from tests.tiny_kinds import write_tiny_encoder, write_tiny_mamba
from tests.tiny_model import N_EMBED, tiny_model, write_tiny_adapter, write_tiny_model

TEXTS = ["the thin king ate", "apple", "an apple and the other king in the inn .", "red"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    with scene(stage.server, stage.workers):
        stage.server.start()
        yield stage
        stage.close()


@pytest.fixture
def embedding_model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if getattr(request, "param", "encoder") == "encoder":
        return write_tiny_encoder(tmp_path / "encoder.gguf")
    return write_tiny_model(tmp_path / "decoder.gguf", pooling=gguf.PoolingType.LAST)


def vectors_of(job: JobHandle) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array(whole(job).embeddings or [])


@pytest.mark.parametrize("embedding_model", ["encoder", "decoder"], indirect=True)
def test_the_texts_of_many_jobs_become_vectors_of_length_one(stage: Stage, embedding_model: Path) -> None:
    worker = stage.worker(model=embedding_model, slots=8, flash_attention="off")
    alone = vectors_of(stage.client.embed(TEXTS[0]))
    jobs = [stage.client.embed(TEXTS) for _ in range(6)]
    others = [stage.client.embed(text) for text in TEXTS]
    plain = stage.client.embed(TEXTS, normalize=False, dimensions=8)

    results = [whole(job) for job in jobs]
    vectors = np.array([result.embeddings for result in results])

    assert vectors.shape == (6, len(TEXTS), N_EMBED)
    assert np.allclose(np.linalg.norm(vectors, axis=2), 1.0, atol=1e-5)
    assert np.allclose(vectors, vectors[0], atol=1e-5)
    assert np.allclose(vectors[0][:1], alone, atol=1e-5)
    assert np.allclose([vectors_of(job) for job in others], vectors[0][:, None], atol=1e-5)
    assert vectors_of(plain).shape == (len(TEXTS), 8)
    assert {(result.status, result.finish_reason, result.usage.completion_tokens) for result in results} == {
        ("completed", "stop", 0)
    }
    assert worker.exit_code is None


def test_an_embedding_job_has_two_events_and_celery_has_its_result(stage: Stage, embedding_model: Path) -> None:
    stage.worker(model=embedding_model)
    sent = stage.app.send_task(
        "celery_llama.embed", kwargs={"job": {"input": TEXTS}}, task_id="plain", queue="stage", priority=3
    )
    wait_for_celery(stage, stage.client.job("plain"), "SUCCESS")

    started, finished = stream(stage.client.job("plain"))
    result = sent.get(timeout=PATIENCE_SECONDS)
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert started.prompt_tokens == finished.usage.prompt_tokens == result["usage"]["prompt_tokens"] > len(TEXTS)
    assert result["embeddings"] == stage.client.job("plain").result(PATIENCE_SECONDS).embeddings
    assert stage.cli("result", "plain")[0]["embeddings"] == result["embeddings"]


def refused(job: JobHandle) -> tuple[str, str]:
    with pytest.raises(JobFailed) as caught:
        job.result(PATIENCE_SECONDS)
    assert caught.value.result.error is not None
    return caught.value.failure_code, caught.value.result.error.message


def test_a_job_of_the_other_kind_is_refused_and_the_next_one_runs(stage: Stage, embedding_model: Path) -> None:
    worker = stage.worker(model=embedding_model)
    code, message = refused(stage.submit())

    assert (code, "makes embeddings and generates no text" in message) == ("invalid_request", True)
    assert stage.client.embed("a").result(PATIENCE_SECONDS).embeddings
    assert refused(stage.client.embed("apple " * 2000))[0] == "context_length_exceeded"
    worker.stop()

    stage.worker()
    code, message = refused(stage.client.embed("a"))
    assert (code, "makes no embeddings" in message) == ("invalid_request", True)
    assert stage.submit().result(PATIENCE_SECONDS).text


def test_an_embedding_job_whose_worker_is_killed_is_done_by_the_next(stage: Stage, embedding_model: Path) -> None:
    first = stage.worker(model=embedding_model, slots=1)
    job = stage.client.embed(["the king and the apple " * 4] * 256)
    wait_for_status(job, "running")
    first.kill()
    stage.worker(model=embedding_model)

    result = whole(job)
    assert len(result.embeddings or []) == 256
    assert result.attempts in {1, 2}


def test_jobs_choose_among_the_adapters_that_were_named_at_start(stage: Stage, tmp_path: Path) -> None:
    red, blue = (write_tiny_adapter(tmp_path / f"{seed}.gguf", seed=seed) for seed in (0, 1))
    worker = stage.worker(lora=f"red={red},blue={blue}")
    choices: list[list[dict[str, Any]]] = [[], [{"name": "red"}], [{"name": "blue"}], [{"name": "red", "scale": 0.5}]]
    alone = [stage.undisturbed_text(lora=lora) for lora in choices]
    together = [stage.submit(lora=lora) for lora in choices * 3]

    results = [whole(job) for job in together]
    assert [result.text for result in results] == alone * 3
    assert len(set(alone)) == len(choices)
    assert all(result.reproducible for result in results)
    assert "greedy output with adapters does not depend" in worker.log()
    assert refused(stage.submit(lora=[{"name": "green"}])) == (
        "invalid_request",
        "lora: this worker has no green, it has red, blue",
    )


def test_a_wrong_adapter_stops_the_start_with_one_line(stage: Stage) -> None:
    worker = stage.worker(lora=f"red={tiny_model()}")

    wait_for_log(worker, "celery-llama-worker: llama.cpp cannot load")
    assert worker.wait() == 1


def test_a_recurrent_model_generates_as_others_do(stage: Stage, tmp_path: Path) -> None:
    stage.worker(model=write_tiny_mamba(tmp_path / "mamba.gguf"))
    texts = ["the thin king ", "an apple in ", "the other one ate "]
    alone = [stage.undisturbed_text(prompt=text) for text in texts]
    endless = stage.submit(prompt=texts[0], max_tokens=900)
    wait_for_tokens(endless)
    together = [stage.submit(prompt=text) for text in texts * 4]

    assert [whole(job).text for job in together] == alone * 4
    endless.cancel()
    assert whole(endless).text.startswith(alone[0])


def test_check_says_what_an_embedding_model_is_good_for(stage: Stage, embedding_model: Path) -> None:
    command = [sys.executable, "-m", "celery_llama_worker.cli", "check", "--model", str(embedding_model), "--redis-url"]
    done = subprocess.run([*command, stage.server.url], capture_output=True, text=True, check=False, cwd=ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "makes embeddings of 64 values" in done.stdout
