"""From a job to its tokens: template, BOS, lengths, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob, Guidance, Message, TextPart
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.preparing.prompt import PromptBuilder
from celery_llama_worker.errors import BadTemplate, PromptTooLong
from tests.tiny_model import BOS, CHAT_TEMPLATE, TURN_START, tiny_model, write_tiny_model

HELLO = [Message(role="user", content="the end")]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model()) as model:
        yield model


@pytest.fixture
def builder(model: LlamaModel) -> PromptBuilder:
    return PromptBuilder(model, slot_tokens=100)


def text_of(model: LlamaModel, tokens: Any) -> str:
    """The tokens' text, control tokens as they are written."""
    return "".join(model.piece(token).decode() or model.special_text(token) for token in tokens)


def test_messages_are_rendered_by_the_models_template(model: LlamaModel, builder: PromptBuilder) -> None:
    tokens = builder.prepare(GenerateJob(messages=HELLO)).tokens

    assert text_of(model, tokens) == "<s><|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n"
    assert tokens[:2] == [BOS, TURN_START]


def test_bos_is_added_to_a_text_and_never_twice(builder: PromptBuilder) -> None:
    assert list(builder.prepare(GenerateJob(prompt="the")).tokens).count(BOS) == 1
    assert list(builder.prepare(GenerateJob(prompt="<s>the")).tokens).count(BOS) == 1
    assert list(builder.prepare(GenerateJob(messages=HELLO)).tokens).count(BOS) == 1


def test_token_ids_are_taken_as_they_are(builder: PromptBuilder) -> None:
    assert builder.prepare(GenerateJob(prompt=[40, 41])).tokens == [40, 41]


def test_token_ids_outside_the_vocabulary_are_refused(builder: PromptBuilder) -> None:
    with pytest.raises(InvalidJob, match="the vocabulary has 373 tokens, so 373 is none"):
        builder.prepare(GenerateJob(prompt=[1, 373]))


def test_content_in_parts_is_one_text(builder: PromptBuilder) -> None:
    parts = [TextPart(type="text", text="the "), TextPart(type="text", text="end")]
    job = GenerateJob(messages=[Message(role="user", content=parts)])

    assert builder.prepare(job) == builder.prepare(GenerateJob(messages=HELLO))


def test_a_developer_message_is_a_system_message_to_templates_that_know_no_other(
    model: LlamaModel, builder: PromptBuilder
) -> None:
    job = GenerateJob(messages=[Message(role="developer", content="an"), *HELLO])

    assert "<|im_start|>system\nan" in text_of(model, builder.prepare(job).tokens)


def test_without_a_limit_the_output_may_fill_the_slot(builder: PromptBuilder) -> None:
    assert builder.prepare(GenerateJob(prompt=[40] * 60)).max_tokens == 40


@pytest.mark.parametrize(("wanted", "given"), [(10, 10), (40, 40), (500, 40)])
def test_a_limit_is_cut_to_what_fits(builder: PromptBuilder, wanted: int, given: int) -> None:
    assert builder.prepare(GenerateJob(prompt=[40] * 60, max_tokens=wanted)).max_tokens == given


@pytest.mark.parametrize("tokens", [100, 101, 5_000])
def test_a_prompt_that_leaves_no_room_is_refused(builder: PromptBuilder, tokens: int) -> None:
    with pytest.raises(PromptTooLong, match=f"the prompt has {tokens} tokens; this worker's slots have 100"):
        builder.prepare(GenerateJob(prompt=[40] * tokens))


def test_stop_strings_and_grammar_come_along(builder: PromptBuilder) -> None:
    prepared = builder.prepare(GenerateJob(prompt="a", stop=["x", "y"], grammar='root ::= "a"'))

    assert (prepared.stop, prepared.grammar) == (("x", "y"), 'root ::= "a"')


def build(folder: Path, template: str | None) -> tuple[LlamaModel, PromptBuilder]:
    """A model with another template."""
    model = LlamaModel(write_tiny_model(folder / "other.gguf", chat_template=template))
    return model, PromptBuilder(model, slot_tokens=100)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "this model has no chat template; send `prompt`"),
        ("{% if %}", "this model's chat template is broken"),
        ("{{ raise_exception('roles must\nalternate') }}", "refused the messages: roles must alternate$"),
        ("{{ messages[7].content }}", "refused the messages"),
        ("{{ 1 / 0 }}", "refused the messages: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages: access to attribute '__class__'"),
        ("{% for i in range(9999999999) %}x{% endfor %}", "refused the messages: Range too big"),
    ],
)
def test_what_a_template_cannot_render_is_refused_with_a_reason(
    tmp_path: Path, template: str | None, reason: str
) -> None:
    model, builder = build(tmp_path, template)

    with model, pytest.raises(BadTemplate, match=reason):
        builder.prepare(GenerateJob(messages=HELLO))


def test_a_model_without_a_template_still_takes_prompts(tmp_path: Path) -> None:
    model, builder = build(tmp_path, None)

    with model:
        assert builder.prepare(GenerateJob(prompt="a")).tokens[0] == BOS


def test_template_options_reach_the_template(tmp_path: Path) -> None:
    model, builder = build(tmp_path, "{{ mood }}")

    with model:
        job = GenerateJob(messages=HELLO, chat_template_kwargs={"mood": "the"})
        assert text_of(model, builder.prepare(job).tokens) == "<s>the"


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "self", "raise_exception"])
def test_what_the_template_is_given_by_the_worker_a_job_cannot_give(builder: PromptBuilder, name: str) -> None:
    with pytest.raises(BadTemplate):
        builder.prepare(GenerateJob(messages=HELLO, chat_template_kwargs={name: "x"}))


def test_a_prompt_that_renders_to_nothing_has_at_least_bos(tmp_path: Path) -> None:
    model, builder = build(tmp_path, "{{ '' }}")

    with model:
        assert builder.prepare(GenerateJob(messages=HELLO)).tokens == [BOS]


def test_the_template_is_the_models(model: LlamaModel) -> None:
    assert model.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize(("shared_cells", "room"), [(False, 60), (True, 10)])
def test_a_guided_pair_that_shares_one_pool_of_cells_has_half_of_it_for_each(
    model: LlamaModel, shared_cells: bool, room: int
) -> None:
    builder = PromptBuilder(model, slot_tokens=100, shared_cells=shared_cells)
    job = GenerateJob(prompt=[40] * 9, guidance=Guidance(negative_prompt="a" * 39, scale=2.0))

    prepared = builder.prepare(job)

    assert prepared.negative is not None
    assert (len(prepared.negative), prepared.max_tokens) == (40, room)
