"""What a job may ask for, and how a wrong one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob, Message, encode_body, parse_generate_job
from celery_llama.protocol.kinds import describe_job

SECRET = "the user's secret"


def test_the_body_holds_only_what_was_set() -> None:
    job = parse_generate_job({"prompt": "hello", "max_tokens": 3, "stop": "."})

    assert job.body() == {"prompt": "hello", "max_tokens": 3, "stop": ["."]}


def test_a_body_read_back_is_the_same_job() -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    job = GenerateJob(messages=[Message(role="user", content="hello")], response_format=schema)  # type: ignore[arg-type]

    assert parse_generate_job(json.loads(encode_body(job.body()))) == job


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [-1]},
        {"messages": []},
        {"prompt": SECRET, "messages": [{"role": "user", "content": SECRET}]},
        {"prompt": SECRET, "colour": "blue"},
        {"prompt": SECRET, "max_tokens": 0},
        {"prompt": SECRET, "max_tokens": "12"},
        {"prompt": SECRET, "max_tokens": 2**31},
        {"prompt": [2**31]},
        {"prompt": SECRET + "\ud800"},
        {"messages": [{"role": "user", "content": SECRET}], "chat_template_kwargs": {"a": "\ud800"}},
        {"messages": [{"role": "user", "content": SECRET}], "chat_template_kwargs": {"a": float("nan")}},
        {"prompt": SECRET, "temperature": float("nan")},
        {"prompt": SECRET, "temperature": -0.1},
        {"prompt": SECRET, "seed": 0xFFFF_FFFF},
        {"prompt": SECRET, "stop": ["."] * 17},
        {"prompt": SECRET, "stop": [""]},
        {"prompt": SECRET, "top_logprobs": 3},
        {"prompt": SECRET, "logit_bias": {"-1": 1.0}},
        {"prompt": SECRET, "priority": 10},
        {"prompt": SECRET, "lora": [{"name": "red"}, {"name": "red", "scale": 0.5}]},
        {"prompt": SECRET, "lora": [{"name": ""}]},
        {"prompt": SECRET, "lora": ["red"]},
        {"prompt": SECRET, "timeout": 0},
        {"prompt": SECRET, "timeout": 1e300},
        {"prompt": SECRET, "metadata": {"a": 1}},
        {"prompt": SECRET, "chat_template_kwargs": {"a": 1}},
        {"prompt": SECRET, "grammar": "root ::= [a]", "response_format": {"type": "json_object"}},
        {"prompt": SECRET, "response_format": {"type": "json_schema"}},
        {"messages": [{"role": "robot", "content": SECRET}]},
        [],
        None,
        "prompt",
    ],
    ids=ascii,
)
def test_a_job_that_is_not_valid_is_refused_without_repeating_its_text(body: object) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_generate_job(body)

    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"prompt": "x", "max_token": 3}, "max_token: unknown field, did you mean max_tokens?"),
        ({"prompt": "x", "max_completion_tokens": 3}, "max_completion_tokens: unknown field, did you mean max_tokens?"),
        ({"prompt": "x", "colour": "blue"}, "colour: unknown field"),
        ({"prompt": "x", "response_format": {"typ": "text"}}, "response_format.typ: unknown field"),
    ],
    ids=str,
)
def test_a_field_that_is_not_known_is_named_with_the_one_that_may_be_meant(body: object, line: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_generate_job(body)

    assert str(caught.value) == line


def test_a_body_nested_without_end_is_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(100_000):
        nested = {"a": nested}
    try:
        with pytest.raises(InvalidJob):
            parse_generate_job({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": nested})
    finally:
        while nested:  # freed from the outside in: the interpreter would recurse
            nested = nested.get("a", {})


def test_the_description_of_a_job_says_its_size_and_never_its_text() -> None:
    message = {"role": "user", "content": SECRET}

    assert describe_job({"messages": [message] * 3, "max_tokens": 64}) == "chat, 3 messages, max_tokens=64"
    assert describe_job({"messages": [message]}) == "chat, 1 message"
    assert describe_job({"prompt": SECRET, "n": 2}) == "prompt, 17 characters, n=2"
    assert describe_job({"prompt": [1, 2, 3]}) == "prompt, 3 tokens"
    assert describe_job({}) == "no prompt"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_values | st.dictionaries(st.sampled_from([*GenerateJob.model_fields, "other"]), json_values, max_size=6))
def test_any_value_is_a_job_that_can_be_sent_or_is_refused(body: object) -> None:
    try:
        job = parse_generate_job(body)
    except InvalidJob:
        return
    assert parse_generate_job(json.loads(encode_body(job.body()))) == job


@given(st.dictionaries(st.sampled_from(["prompt", "messages", "max_tokens", "n"]), json_values))
def test_any_body_can_be_described(body: dict[str, Any]) -> None:
    assert "\n" not in describe_job(body)


def test_a_body_has_its_fields_in_the_schemas_order_whatever_order_they_were_given_in() -> None:
    given = {"n": 2, "prompt": "x", "top_k": 1, "metadata": {"a": "b"}, "max_tokens": 3}

    order = list(GenerateJob.model_json_schema()["properties"])
    assert list(parse_generate_job(given).body()) == sorted(given, key=order.index)


def test_a_schemas_properties_keep_their_order_on_the_wire() -> None:
    schema = {"type": "object", "properties": {"reasoning": {"type": "string"}, "answer": {"type": "string"}}}
    job = GenerateJob.model_validate(
        {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    )

    sent = encode_body(job.body())

    assert sent.index("reasoning") < sent.index("answer")
