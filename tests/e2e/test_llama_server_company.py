"""What llama-server's own unit tests ask of several requests: seeds, slots, batches, cached prompts, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_llama.protocol.events import Progress
from celery_llama_worker.engine.llama.model import LlamaModel
from tests.tiny_model import tiny_model
from tests.whole_engine import Answer, whole_engine

PROMPTS = ["Write a very long book.", "Write another a poem.", "What is LLM?", "The sky is blue and I love it."]
PROMPTS += ["Write another very long music lyrics.", "Write a very long joke."]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model()) as loaded:
        yield loaded


def sampled(prompt: str = "I believe the meaning of life is", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 1.0, "seed": 42, "max_tokens": 16, "ignore_eos": True, **fields}


def tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {job_id: answer.tokens for job_id, answer in answers.items()}


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_seed_gives_the_same_text_every_time(model: LlamaModel, slots: int, temperature: float) -> None:
    with whole_engine(model, slots=slots, ctx_per_slot=128) as whole:
        one_by_one = [whole.one(**sampled(temperature=temperature)).tokens for _ in range(4)]
        together = tokens(whole.run({str(n): sampled(temperature=temperature) for n in range(4)}))

    assert [*one_by_one, *together.values()] == [one_by_one[0]] * 8


@pytest.mark.parametrize("slots", [1, 2])
def test_another_seed_gives_another_text(model: LlamaModel, slots: int) -> None:
    with whole_engine(model, slots=slots, ctx_per_slot=128) as whole:
        answers = whole.run({str(seed): sampled(seed=seed) for seed in range(4)})

    assert len({tuple(answer.tokens) for answer in answers.values()}) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_how_much_is_read_in_a_step_changes_nothing(model: LlamaModel, temperature: float) -> None:
    found = []
    for prefill_tokens in (16, 32, 512):
        options: dict[str, Any] = {
            "slots": 4,
            "ctx_per_slot": 256,
            "chunk_tokens": 16,
            "prefill_tokens": prefill_tokens,
        }
        with whole_engine(model, **options) as whole:
            jobs = {prompt: sampled(prompt * 4, temperature=temperature) for prompt in PROMPTS}
            found.append(tokens(whole.run(jobs)))

    assert found == [found[0]] * 3


def test_a_prompt_that_was_in_the_cells_gives_the_same_text_as_one_that_was_read(model: LlamaModel) -> None:
    long = "I believe the meaning of life is " * 4
    with whole_engine(model, slots=2, ctx_per_slot=256, chunk_tokens=16) as whole:
        read, found = whole.one(**sampled(long)), whole.one(**sampled(long))

    assert (read.result.usage.cached_tokens, found.tokens) == (0, read.tokens)
    assert found.result.usage.cached_tokens >= found.result.usage.prompt_tokens - 17


@pytest.mark.parametrize(("slots", "jobs"), [(1, 3), (2, 2), (2, 4), (4, 2), (4, 6)])
def test_any_number_of_jobs_on_any_number_of_slots_says_what_each_says_alone(
    model: LlamaModel, slots: int, jobs: int
) -> None:
    wanted = {prompt: sampled(prompt) for prompt in PROMPTS[:jobs]}
    with whole_engine(model, slots=slots, ctx_per_slot=128) as whole:
        together = tokens(whole.run(wanted))
    with whole_engine(model, slots=1, ctx_per_slot=128) as whole:
        alone = {prompt: whole.one(**fields).tokens for prompt, fields in wanted.items()}

    assert together == alone


@pytest.mark.parametrize("wanted", [[80, 40, 80, 80], [70] * 4, [90, 90, 40, 90], [90, 90, 40, 75]])
def test_jobs_that_do_not_fit_into_one_pool_together_all_complete(model: LlamaModel, wanted: list[int]) -> None:
    options: dict[str, Any] = {
        "slots": 4,
        "ctx_per_slot": 64,
        "memory": "unified",
        "chunk_tokens": 16,
        "prefill_tokens": 64,
    }
    with whole_engine(model, **options) as whole:
        answers = whole.run({str(n): sampled("A", max_tokens=count) for n, count in enumerate(wanted)})

    assert [answer.result.usage.completion_tokens for answer in answers.values()] == wanted


def test_prompts_that_come_and_go_are_counted_whole_however_much_of_them_was_cached(model: LlamaModel) -> None:
    with whole_engine(model, slots=2, ctx_per_slot=512, chunk_tokens=16) as whole:
        cached = 0
        for turn in range(16):
            number = (0, 1, 0, 2, 0, 3, 0, 4)[turn % 8]
            prompt = f" Hello {number}" * (40 + number)
            usage = whole.one(**sampled(prompt, max_tokens=1 + turn % 8)).result.usage
            length = 1 + len(model.tokenize(prompt, add_special=False, parse_special=False))
            assert (usage.prompt_tokens, usage.completion_tokens) == (length, 1 + turn % 8)
            assert usage.cached_tokens < length
            cached += usage.cached_tokens
    assert cached > 0


def test_a_long_prompt_tells_how_far_it_has_been_read(model: LlamaModel) -> None:
    with whole_engine(model, slots=1, ctx_per_slot=2048) as whole:
        prompt = [5 + n % 90 for n in range(1_700)]
        answer = whole.one(**sampled() | {"prompt": prompt})

    said = [event for event in answer.events if isinstance(event, Progress)]
    assert [event.read_tokens for event in said] == [512, 1024, 1536]
    assert {event.prompt_tokens for event in said} == {1_700}


def test_a_cancelled_job_frees_its_slot_at_once(model: LlamaModel) -> None:
    with whole_engine(model, slots=1, ctx_per_slot=512) as whole:
        whole.add("long", sampled(max_tokens=400))
        for _ in range(5):
            whole.step()
        whole.end("long")

        assert whole.scheduler.idle
        assert whole.one(**sampled(max_tokens=3)).result.usage.completion_tokens == 3
