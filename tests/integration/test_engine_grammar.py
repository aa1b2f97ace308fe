"""Grammars on their way to llama.cpp: what passes the check it can parse, what does not never reaches it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.constraint.grammar import job_grammar
from celery_llama_worker.engine.llama.candidates import Candidates
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.llama.sampling import make_sampler
from celery_llama_worker.errors import BadGrammar
from tests.tiny_model import tiny_model

SYMBOLS = [
    '"a"',
    '"bc"',
    "[a-c]",
    ".",
    "root",
    "x",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2}",
    "{0,3}",
    "{1,}",
    "{3,1}",
    "\n",
]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model()) as model:
        yield model


def job(**options: Any) -> GenerateJob:
    return GenerateJob(prompt="x", **options)


def schema_job(schema: Any) -> GenerateJob:
    return job(response_format={"type": "json_schema", "json_schema": {"schema": schema}})


def generated(model: LlamaModel, subject: GenerateJob, seed: int) -> str:
    """A random text that the job's grammar allows, up to its end."""
    return spoken(model, subject, seed, tokens=4_000)[0]


def spoken(model: LlamaModel, subject: GenerateJob, seed: int, *, tokens: int) -> tuple[str, bool]:
    """A random text that the job's grammar allows, and whether it came to its end."""
    sampler = make_sampler(subject, model, seed=seed, grammar=job_grammar(subject, model))
    candidates, random, text = Candidates(model.n_vocab), np.random.default_rng(seed), b""
    ended = False
    for _ in range(tokens):
        row = random.standard_normal(model.n_vocab).astype(np.float32)
        row[[*model.end_tokens, *model.tokenize('",}]', add_special=False, parse_special=False)]] += 5.0
        token = sampler.sample(row, candidates).token
        ended = model.is_end(token)
        if ended:
            break
        text += model.piece(token)
    sampler.close()
    return text.decode(errors="replace"), ended


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from(SYMBOLS), max_size=12), more=st.lists(st.sampled_from(SYMBOLS), max_size=6))
def test_what_passes_the_check_llama_cpp_can_parse(model: LlamaModel, parts: list[str], more: list[str]) -> None:
    subject = job(grammar=f"root ::= {' '.join(parts)}\nx ::= {' '.join(more)}")
    reason = ""
    try:
        make_sampler(subject, model, seed=1, grammar=job_grammar(subject, model)).close()
    except BadGrammar as error:
        reason = str(error)
    assert "failed to parse" not in reason


def test_nothing_of_a_refused_grammar_is_printed(model: LlamaModel, capfd: pytest.CaptureFixture[str]) -> None:
    for text in ('root ::= "secret', "root ::= secret", 'root ::= root "secret"'):
        with pytest.raises(BadGrammar) as caught:
            job_grammar(job(grammar=text), model)
        assert '"secret' not in str(caught.value)

    assert capfd.readouterr() == ("", "")


def test_left_recursion_that_only_llama_cpp_finds_is_refused_with_its_reason(model: LlamaModel) -> None:
    subject = job(grammar='root ::= ("a" | "")*')

    with pytest.raises(BadGrammar, match="left recursion"):
        make_sampler(subject, model, seed=1, grammar=job_grammar(subject, model))


def test_the_deepest_nesting_that_passes_fits_a_threads_stack(model: LlamaModel) -> None:
    subject = job(grammar="root ::= " + "(" * 1_999 + '"a"' + ")?" * 1_999)
    made = []

    def make() -> None:
        with pytest.raises(BadGrammar):  # too many rules under one repetition, said after having parsed it all
            job_grammar(subject, model)
        plain = job(grammar="root ::= " + "(" * 1_999 + '"a"' + ")" * 1_999)
        made.append(make_sampler(plain, model, seed=1, grammar=job_grammar(plain, model)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    made[0].close()


def test_a_token_of_the_vocabulary_may_be_named(model: LlamaModel) -> None:
    assert generated(model, job(grammar='root ::= <|im_start|> "a"'), 1) == "a"
    with pytest.raises(BadGrammar, match="a token of this vocabulary"):
        job_grammar(job(grammar="root ::= <|im_stop|>"), model)


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Part(BaseModel):
    name: str = Field(max_length=5)
    count: int | None
    tags: list[str] = Field(max_length=2)


class Order(BaseModel):
    id: int
    colour: Colour = Colour.RED
    parts: list[Part] = Field(min_length=1, max_length=3)
    notes: dict[str, bool]
    anything: Any = None
    code: str = Field(pattern=r"^[A-Z]{2}-\d+ .[^a]$")


class Tree(BaseModel):
    value: bool
    children: list[Tree] = Field(max_length=2)


SCHEMAS: dict[str, dict[str, Any]] = {
    "pydantic's schema of nested models": Order.model_json_schema(),
    "a recursive model": Tree.model_json_schema(),
    "several types": {"type": ["string", "integer"], "maxLength": 3},
    "an enumeration": {"enum": ["a", 1, None, True]},
    "a tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]},
    "other properties": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    },
    "a date": {"type": "string", "format": "date"},
    "definitions with the names of types": {
        "$defs": {"string": {"type": "integer"}, "value": {"type": "boolean"}},
        "type": "object",
        "properties": {"s": {"$ref": "#/$defs/string"}, "v": {"$ref": "#/$defs/value"}, "t": {"type": "string"}},
        "required": ["s", "v", "t"],
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_what_a_schemas_grammar_allows_is_valid_by_the_schema(model: LlamaModel, schema: dict[str, Any]) -> None:
    for seed in range(8):
        text = generated(model, schema_job(schema), seed)
        jsonschema.validate(json.loads(text), schema)


def test_a_json_object_is_one(model: LlamaModel) -> None:
    text = generated(model, job(response_format={"type": "json_object"}), 3)

    assert isinstance(json.loads(text), dict)


def test_no_constraint_is_no_grammar(model: LlamaModel) -> None:
    assert job_grammar(job(), model) is None
    assert job_grammar(job(response_format={"type": "text"}), model) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": "string", "pattern": "no anchors"},
        {"type": "string", "pattern": "^*$"},
        {"$ref": "#/nowhere"},
        {"type": "object", "properties": {"a": 1}},
        {"type": "object", "properties": 1},
        {"enum": []},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_cannot_be_used_is_refused(model: LlamaModel, schema: dict[str, Any]) -> None:
    with pytest.raises(BadGrammar, match=r"schema|grammar"):
        job_grammar(schema_job(schema), model)


def test_a_schema_with_many_optional_properties_is_quick(model: LlamaModel) -> None:
    schema = {"type": "object", "properties": {f"property{n}": {"type": "string"} for n in range(60)}}
    subject = schema_job(schema)

    make_sampler(subject, model, seed=1, grammar=job_grammar(subject, model)).close()


names = st.sampled_from(["a", "b", "ab", 'q"', "\n", "é", "ref-0", "string"])
scalars: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from([{}, {"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}, {"$ref": "#/$defs/d"}]),
    st.fixed_dictionaries(
        {"enum": st.lists(st.none() | st.booleans() | st.integers() | st.text(max_size=3), min_size=1)}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={
            "minimum": st.integers(-50, 50) | st.sampled_from([0.5, -2.25]),
            "maximum": st.integers(-50, 50) | st.sampled_from([0.5, 7.125]),
            "exclusiveMinimum": st.integers(-50, 50),
            "exclusiveMaximum": st.integers(-50, 50),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": st.integers(0, 3), "maxLength": st.integers(0, 5)}
    ),
    st.fixed_dictionaries({"format": st.sampled_from(["date", "time", "date-time", "ipv4", "email", "uuid"])}),
    st.fixed_dictionaries({"pattern": st.sampled_from([r"^[a-c]{2}$", r'^("|\\\\|x)+$', r"^[^a]\\d?$", r"^(a|b)*$"])}),
)


def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas made of others."""
    objects = st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "maxProperties": st.integers(0, 3),
            "minProperties": st.integers(0, 1),
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(0, 3),
        },
    )
    unions = st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}, optional={"minimum": st.just(3)})
    return st.one_of(
        objects,
        objects.map(lambda schema: {"type": "object", **schema}),
        arrays,
        unions,
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
    )


schemas = st.recursive(scalars, larger, max_leaves=6)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas, target=schemas, seed=st.integers(0, 10_000))
def test_any_schema_is_refused_or_what_its_grammar_allows_is_valid(
    model: LlamaModel, schema: dict[str, Any], target: dict[str, Any], seed: int
) -> None:
    whole = {**schema, "$defs": {"d": target}}
    subject = schema_job(whole)
    try:
        job_grammar(subject, model)
    except BadGrammar:
        return
    text, ended = spoken(model, subject, seed, tokens=300)
    if ended:
        checker = jsonschema.FormatChecker(["date", "ipv4", "email"])
        jsonschema.Draft202012Validator(whole, format_checker=checker).validate(json.loads(text))
