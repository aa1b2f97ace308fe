"""What an embedding job may ask for, and what tells it from other jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_llama.client.flows import prepare_embedding
from celery_llama.protocol.embedding import MAX_TEXTS, EmbedJob, parse_embed_job
from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob, encode_body
from celery_llama.protocol.kinds import describe_job, parse_job, task_of
from celery_llama.protocol.names import EMBED_TASK, GENERATE_TASK

SECRET = "the user's secret"


def test_a_text_alone_is_a_list_of_one() -> None:
    assert parse_embed_job({"input": "a"}) == parse_embed_job({"input": ["a"]}) == prepare_embedding("a", {})
    assert parse_embed_job({"input": "a"}).body() == {"input": ["a"]}


def test_a_body_read_back_is_the_same_job() -> None:
    job = prepare_embedding(("a", "b"), {"normalize": False, "dimensions": 3, "priority": 1, "truncate": "left"})

    assert parse_embed_job(json.loads(encode_body(job.body()))) == job == prepare_embedding(job, {})


def test_a_job_has_no_further_fields() -> None:
    with pytest.raises(TypeError):
        prepare_embedding(EmbedJob(input=["a"]), {"dimensions": 3})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": ""},
        {"input": [SECRET, ""]},
        {"input": [SECRET] * (MAX_TEXTS + 1)},
        {"input": [1, 2]},
        {"input": SECRET, "prompt": SECRET},
        {"input": SECRET, "dimensions": 0},
        {"input": SECRET, "truncate": "middle"},
        {"input": SECRET + "\ud800"},
        {"input": SECRET, "priority": 10},
        SECRET,
        None,
    ],
)
def test_a_wrong_job_is_refused_without_repeating_its_texts(body: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_embed_job(body)

    assert SECRET not in str(caught.value)


def test_the_body_says_which_task_runs_it_and_the_task_how_it_is_read() -> None:
    assert (task_of({"input": "a"}), task_of({"prompt": "a"}), task_of({})) == (
        EMBED_TASK,
        GENERATE_TASK,
        GENERATE_TASK,
    )
    assert isinstance(parse_job(EMBED_TASK, {"input": "a"}), EmbedJob)
    assert isinstance(parse_job(GENERATE_TASK, {"prompt": "a"}), GenerateJob)
    for task, body in ((EMBED_TASK, {"prompt": "a"}), (GENERATE_TASK, {"input": "a"})):
        with pytest.raises(InvalidJob):
            parse_job(task, body)


def test_a_job_is_described_without_its_texts() -> None:
    assert describe_job({"input": [SECRET] * 3}) == "embedding, 3 texts"
    assert describe_job({"input": SECRET}) == "embedding, 1 text"
