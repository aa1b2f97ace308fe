"""Embeddings on llama.cpp: a text's vector does not depend on its neighbours; what does not fit a model is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from celery_llama.protocol.embedding import parse_embed_job
from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.embedding.embedder import LlamaEmbedder
from celery_llama_worker.engine.embedding.preparer import EmbedPreparer
from celery_llama_worker.engine.embedding.scheduler import EmbedScheduler
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.outputs import Vector
from celery_llama_worker.engine.plan import Piece, Plan, Values
from celery_llama_worker.engine.preparing.preparer import GeneratePreparer
from celery_llama_worker.errors import StartupError, TextTooLong
from celery_llama_worker.settings import WorkerSettings
from tests.tiny_kinds import CLS, ENCODER_CONTEXT, SEP, write_tiny_encoder
from tests.tiny_model import BOS, EOS, N_EMBED, tiny_model, write_tiny_adapter, write_tiny_model

#: Fused attention rounds to 16 bits on the way, in an order that depends on the others in a call.
SETTINGS = WorkerSettings(
    slots=6, ctx_per_slot=64, chunk_tokens=16, prefill_tokens=96, threads=1, flash_attention="off"
)
FUSED = SETTINGS.model_copy(update={"flash_attention": "on"})
TEXTS = ["the thin king ate", "apple", "an apple and the other king in the inn .", "red", "the inns", "ate " * 20]
POOLING = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS, "last": gguf.PoolingType.LAST}


@pytest.fixture(scope="module", params=["encoder-cls", "encoder-mean", "decoder-last", "decoder-mean"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    kind, _, pooling = request.param.partition("-")
    path = tmp_path_factory.mktemp("embedding") / "model.gguf"
    write = write_tiny_encoder if kind == "encoder" else write_tiny_model
    with LlamaModel(write(path, pooling=POOLING[pooling])) as model:
        assert model.pooling == pooling
        yield model


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    with LlamaModel(write_tiny_encoder(tmp_path_factory.mktemp("encoder") / "model.gguf")) as model:
        yield model


@pytest.fixture
def embedder(model: LlamaModel) -> Iterator[LlamaEmbedder]:
    with LlamaEmbedder(model, SETTINGS) as embedder:
        yield embedder


def embed(model: LlamaModel, embedder: LlamaEmbedder, *jobs: dict[str, Any]) -> list[list[Values]]:
    """The vectors of jobs that are there at the same time."""
    preparer = EmbedPreparer(model, SETTINGS, embedder.limits.cells_per_slot)
    scheduler = EmbedScheduler(embedder.limits)
    for number, job in enumerate(jobs):
        scheduler.add(preparer.prepare(str(number), 1, parse_embed_job(job), {}, None).attempt)
    vectors: list[list[Values]] = [[] for _ in jobs]
    while not scheduler.idle:
        plan = scheduler.plan(0.0)
        for call, result in zip(plan.calls, embedder.execute(plan), strict=True):
            for output in scheduler.commit(call, result):
                if isinstance(output, Vector):
                    vectors[int(output.job_id)].append(output.values)
    return vectors


def test_a_texts_vector_is_the_same_alone_and_among_others(model: LlamaModel, embedder: LlamaEmbedder) -> None:
    alone = [embed(model, embedder, {"input": text})[0][0] for text in TEXTS]
    together = embed(model, embedder, {"input": TEXTS})[0]
    company = embed(model, embedder, {"input": TEXTS[::-1]}, {"input": TEXTS[:2]}, {"input": TEXTS[2:], "priority": 0})

    assert all(vector.shape == (N_EMBED,) for vector in alone)
    for others in (together, company[0][::-1], company[1] + company[2]):
        assert np.allclose(others, alone, atol=1e-5)
    assert np.abs(np.array(alone)[0] - np.array(alone)[1:]).max(axis=1).min() > 1e-3


def test_with_fused_attention_it_is_the_same_but_for_rounding(model: LlamaModel) -> None:
    with LlamaEmbedder(model, FUSED) as embedder:
        alone = [embed(model, embedder, {"input": text})[0][0] for text in TEXTS]
        company = embed(model, embedder, {"input": TEXTS[::-1]})[0][::-1]

    assert np.sum(np.array(alone) * np.array(company), axis=1).min() > 0.999


def test_a_normalised_vector_has_length_one_and_the_direction_of_the_plain_one(
    model: LlamaModel, embedder: LlamaEmbedder
) -> None:
    unit, plain, cut = (
        np.array(vectors)
        for vectors in embed(
            model,
            embedder,
            {"input": TEXTS},
            {"input": TEXTS, "normalize": False},
            {"input": TEXTS, "dimensions": 10},
        )
    )

    lengths = np.linalg.norm(plain, axis=1)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1.0, atol=1e-5)
    assert np.abs(lengths - 1).min() > 0.1
    assert np.allclose(unit, plain / lengths[:, None], atol=1e-5)
    assert np.allclose(cut, plain[:, :10] / np.linalg.norm(plain[:, :10], axis=1)[:, None], atol=1e-5)


def test_calls_leave_nothing_behind(model: LlamaModel, embedder: LlamaEmbedder) -> None:
    first = embed(model, embedder, {"input": TEXTS})
    for _ in range(20):
        embed(model, embedder, {"input": ["ate " * 20] * 4})

    assert np.array_equal(embed(model, embedder, {"input": TEXTS}), first)


def test_after_a_fatal_error_there_is_a_new_context(model: LlamaModel) -> None:
    class Failing(LlamaEmbedder):
        codes: list[int]

        def _compute(self, batch: Any) -> int:
            return self.codes.pop() if self.codes else super()._compute(batch)

    tokens = model.tokenize("the", add_special=True, parse_special=False)
    plan = Plan(calls=[[Piece(0, 0, tokens, None)]])
    with Failing(model, SETTINGS) as failing:
        failing.codes = []
        (fine,) = failing.execute(plan)
        failing.codes = [-1, -3]
        errors = [result.error for _ in range(2) for result in failing.execute(plan)]
        (again,) = failing.execute(plan)

    assert [error.cells_lost for error in errors if error] == [True, False]
    assert np.array_equal(fine.vectors[0], again.vectors[0])


def test_an_encoder_reads_no_more_than_it_has_positions_for(encoder: LlamaModel) -> None:
    with LlamaEmbedder(encoder, SETTINGS.model_copy(update={"ctx_per_slot": 4096})) as embedder:
        assert embedder.limits.cells_per_slot == ENCODER_CONTEXT
        (vectors,) = embed(encoder, embedder, {"input": "ate " * 500, "truncate": "right"})
    assert len(vectors) == 1


def test_a_text_that_is_too_long_is_refused_or_cut_at_the_side_that_was_named(encoder: LlamaModel) -> None:
    preparer = EmbedPreparer(encoder, SETTINGS, 8)
    text = "the thin king ate an apple in the inn ."

    def tokens(truncate: str) -> list[int]:
        job = parse_embed_job({"input": ["red", text], "truncate": truncate})
        return list(preparer.prepare("j", 1, job, {}, None).attempt.texts[1])

    middle = encoder.tokenize(text, add_special=False, parse_special=False)
    assert tokens("right") == [CLS, *middle[:6], SEP]
    assert tokens("left") == [CLS, *middle[-6:], SEP]
    with pytest.raises(TextTooLong, match=r"^input\.1: the text has 12 tokens; this worker's model reads 8$"):
        tokens("refuse")


def test_control_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    with LlamaModel(write_tiny_model(tmp_path / "model.gguf", pooling=gguf.PoolingType.LAST)) as model:
        job = parse_embed_job({"input": "</s>the"})
        (tokens,) = EmbedPreparer(model, SETTINGS, 64).prepare("j", 1, job, {}, None).attempt.texts
    assert tokens[0] == BOS
    assert EOS not in tokens


def test_more_dimensions_than_the_model_has_are_refused(encoder: LlamaModel) -> None:
    with pytest.raises(InvalidJob, match="this model's vectors have 64 values"):
        EmbedPreparer(encoder, SETTINGS, 64).prepare(
            "j", 1, parse_embed_job({"input": "a", "dimensions": 65}), {}, None
        )


def test_an_embedding_model_refuses_to_generate_and_a_generating_one_to_embed(encoder: LlamaModel) -> None:
    with pytest.raises(InvalidJob, match="makes embeddings and generates no text"):
        EmbedPreparer(encoder, SETTINGS, 64).prepare("j", 1, GenerateJob(prompt="a"), {}, None)
    with LlamaModel(tiny_model()) as generating:
        preparer = GeneratePreparer(generating, SETTINGS, reproducible=True)
        with pytest.raises(InvalidJob, match="generates text and makes no embeddings"):
            preparer.prepare("j", 1, parse_embed_job({"input": "a"}), {}, None)


@pytest.mark.parametrize(
    ("pooling", "why"),
    [(gguf.PoolingType.RANK, "is a reranking model"), (None, "is not a causal decoder-only model")],
)
def test_an_encoder_that_can_neither_embed_nor_generate_stops_the_start(
    tmp_path: Path, pooling: gguf.PoolingType | None, why: str
) -> None:
    with pytest.raises(StartupError, match=why):
        LlamaModel(write_tiny_encoder(tmp_path / "model.gguf", pooling=pooling))


def test_an_embedding_model_takes_no_adapters(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", pooling=gguf.PoolingType.LAST)
    with (
        LlamaModel(path, lora={"red": write_tiny_adapter(tmp_path / "red.gguf")}) as model,
        pytest.raises(StartupError, match="without LoRA adapters"),
    ):
        LlamaEmbedder(model, SETTINGS)
