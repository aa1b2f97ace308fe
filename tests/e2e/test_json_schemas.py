"""Twenty schemas of different shapes, ten sampled jobs each: every text that was not cut is JSON and valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from celery_llama.client.flows import parsed, prepare
from celery_llama_worker.engine.llama.model import LlamaModel
from tests.whole_engine import WholeEngine, whole_engine

JOBS_EACH = 10
ASKED = [{"role": "user", "content": "Write an example as JSON."}]


def record(**properties: Any) -> dict[str, Any]:
    """An object with all of these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SHORT = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a flat object": record(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 130}),
    "objects in objects": record(
        user=record(
            name=SHORT, home=record(city=SHORT, geo=record(lat={"type": "number", "minimum": -90, "maximum": 90}))
        )
    ),
    "enumerations and constants": record(
        kind={"const": "pet"}, animal={"enum": ["cat", "dog", "newt"]}, legs={"enum": [0, 2, 4, None]}
    ),
    "an array of two to four": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 4},
    "arrays of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 3},
        "minItems": 1,
        "maxItems": 3,
    },
    "a tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"type": "null"}, {"enum": ["x", "y"]}],
        "items": False,
        "minItems": 3,
    },
    "definitions used twice": {
        "$defs": {"point": record(x={"type": "integer", "exclusiveMinimum": -6, "exclusiveMaximum": 6})},
        **record(first={"$ref": "#/$defs/point"}, second={"$ref": "#/$defs/point"}),
    },
    "a tree": {
        "$defs": {
            "node": record(
                value={"type": "boolean"},
                children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            )
        },
        "$ref": "#/$defs/node",
    },
    "optional properties around a required one": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}, "c": {"enum": [1, 2]}, "d": {"type": "null"}},
        "required": ["c"],
        "additionalProperties": False,
    },
    "one of several kinds": {
        "anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"type": "null"}, record(text=SHORT)]
    },
    "exactly one of two, told by a tag": {
        "oneOf": [
            record(kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0, "maximum": 10}),
            record(kind={"const": "square"}, side={"type": "integer", "minimum": 1, "maximum": 10}),
        ]
    },
    "patterns": record(
        code={"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"}, tag={"type": "string", "pattern": "^#(red|blue)?$"}
    ),
    "formats": record(at={"type": "string", "format": "date-time"}, host={"type": "string", "format": "ipv4"}),
    "lengths of strings": record(
        least={"type": "string", "minLength": 3, "maxLength": 5},
        exact={"type": "string", "minLength": 4, "maxLength": 4},
    ),
    "numbers between bounds": record(
        share={"type": "number", "minimum": 0, "maximum": 1},
        below={"type": "integer", "maximum": -5, "minimum": -5000},
        cents={"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 99.75},
    ),
    "booleans and nulls": record(
        yes={"type": "boolean"}, nothing={"type": "null"}, maybe={"type": ["boolean", "null"]}
    ),
    "other properties of one kind": {
        "type": "object",
        "properties": {"id": {"type": "null"}},
        "required": ["id"],
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "names with odd characters": record(
        **{
            'with "quotes"': {"type": "boolean"},
            "back\\slash": {"type": "boolean"},
            "line\nbreak": {"type": "null"},
            "": {"enum": [0]},
            "$x.y/z~": {"enum": [0]},
        }
    ),
    "unicode": record(
        **{
            "größe": {"enum": ["klein", "groß"]},
            "名": {"enum": ["東京", "京都"]},
            "😀": {"const": "e\u0301 مر"},
        }
    ),
    "all of several": {
        "allOf": [
            {"$ref": "#/$defs/named"},
            {"properties": {"size": {"type": "integer", "minimum": 1}}, "required": ["size"]},
            {"properties": {"size": {"maximum": 20}}},
        ],
        "$defs": {"named": {"type": "object", "properties": {"name": SHORT}, "required": ["name"]}},
    },
}


@pytest.fixture(scope="module")
def whole(demo_model: LlamaModel) -> Iterator[WholeEngine]:
    with whole_engine(demo_model, slots=100, ctx_per_slot=192) as whole:
        yield whole


def job(schema: dict[str, Any], seed: int) -> dict[str, Any]:
    """A sampled job; the prompt says nothing of the schema, so that all form comes from the grammar."""
    return {
        "messages": ASKED,
        "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}},
        "temperature": 0.8,
        "seed": seed,
        "max_tokens": 64,
    }


def names_in_order(value: Any, schema: dict[str, Any]) -> bool:
    """Whether an object's properties are in the schema's order."""
    names = [name for name in schema.get("properties", {}) if isinstance(value, dict) and name in value]
    return not names or [name for name in value if name in names] == names


@pytest.mark.timeout(600)
def test_two_hundred_of_two_hundred_texts_are_valid_by_their_schemas(whole: WholeEngine) -> None:
    jobs = {f"{name} {seed}": job(schema, seed) for seed in range(JOBS_EACH) for name, schema in SCHEMAS.items()}
    answers = whole.run(jobs)

    texts: dict[str, set[str]] = {name: set() for name in SCHEMAS}
    for job_id, answer in answers.items():
        name = job_id.rpartition(" ")[0]
        assert answer.result.finish_reason in ("stop", "length"), job_id
        if answer.result.finish_reason == "length":
            continue
        value = json.loads(answer.text)
        jsonschema.validate(value, SCHEMAS[name], format_checker=jsonschema.FormatChecker())
        assert names_in_order(value, SCHEMAS[name]), answer.text
        texts[name].add(answer.text)
    assert len(answers) == 20 * JOBS_EACH
    assert all(texts.values()), "of every schema, at least one text came to its end"


class Owner(BaseModel):
    """Part of a response model."""

    name: str = Field(min_length=1, max_length=8)
    born: date


class Pet(BaseModel):
    """A response model with a field of every kind."""

    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=8)
    weight: float = Field(gt=0, lt=100)
    nickname: Annotated[str, Field(max_length=8)] | None
    tags: list[Annotated[str, Field(pattern=r"^[a-z]{1,6}$")]] = Field(min_length=1, max_length=2)
    owner: Owner | None = None
    friend: Pet | None = None


@pytest.mark.timeout(300)
def test_a_response_model_comes_back_as_its_instance(whole: WholeEngine) -> None:
    fields = {"messages": ASKED, "temperature": 0.8, "max_tokens": 140}

    answers = whole.run({f"pet {seed}": prepare(None, Pet, {**fields, "seed": seed}).body() for seed in range(8)})

    results = [parsed(answer.result, Pet) for answer in answers.values()]
    for result in results:
        assert isinstance(result.parsed, Pet) == (result.status == "completed")
    assert sum(result.status == "completed" for result in results) >= 4
