"""What JSON schemas are made into before they become grammars, and which cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from celery_llama_worker.engine.constraint.json_grammar import MAX_COUNT, schema_grammar
from celery_llama_worker.engine.constraint.schema import Schemas
from celery_llama_worker.errors import BadGrammar

TAGGED = {
    kind: {"type": "object", "properties": {"kind": {"const": kind}, kind: {"type": "null"}}, "required": ["kind"]}
    for kind in ("cat", "dog")
}


def plain(schema: Any) -> dict[str, Any]:
    return Schemas(schema).plain(schema)


def same(one: Any, two: Any) -> bool:
    """Whether two schemas make the same grammar."""
    return schema_grammar(one) == schema_grammar(two)


@pytest.mark.parametrize("schema", [{}, True, {"title": "Anything", "description": "at all", "x-own": 1}])
def test_a_schema_that_says_nothing_allows_every_value(schema: Any) -> None:
    assert plain(schema) == {}


def test_a_list_of_types_keeps_what_stands_beside_it() -> None:
    assert same(
        {"type": ["string", "null"], "maxLength": 5}, {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]}
    )


def test_keywords_without_a_type_are_about_the_type_they_belong_to() -> None:
    assert plain({"minimum": 3}) == {"type": "number", "minimum": 3}
    assert plain({"properties": {}}) == {"type": "object", "properties": {}}
    assert plain({"minimum": 3, "maxLength": 2})["anyOf"][0]["type"] == "string"


def test_an_enumeration_keeps_the_values_of_its_type() -> None:
    assert plain({"type": ["string", "null"], "enum": ["a", None, 1], "title": "T"}) == {"values": ["a", None]}
    assert plain({"const": 1.0, "enum": [1, 2]}) == {"values": [1]}


def test_what_holds_at_once_is_put_together() -> None:
    assert same(
        {
            "allOf": [
                {"$ref": "#/$defs/named"},
                {"properties": {"age": {"type": "number", "minimum": 0}}, "required": ["age"]},
                {"properties": {"age": {"type": "integer", "maximum": 9, "minimum": 3}}},
            ],
            "$defs": {"named": {"type": "object", "properties": {"name": {"maxLength": 3}}, "required": ["name"]}},
        },
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 3},
                "age": {"type": "integer", "minimum": 3, "maximum": 9},
            },
            "required": ["name", "age"],
        },
    )


def test_what_stands_beside_alternatives_or_a_reference_holds_for_each() -> None:
    assert same(
        {"type": "integer", "minimum": 1, "anyOf": [{"maximum": 3}, {"minimum": 8, "maximum": 9}]},
        {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 3}, {"type": "integer", "minimum": 8, "maximum": 9}]},
    )
    assert same(
        {"$ref": "#/$defs/text", "maxLength": 2, "$defs": {"text": {"type": "string", "minLength": 1}}},
        {"type": "string", "minLength": 1, "maxLength": 2},
    )


def test_references_may_be_escaped_lead_through_lists_and_to_each_other() -> None:
    schema = {
        "$defs": {"a/b": {"anyOf": [{"$ref": "#/$defs/c"}]}, "c": {"type": "null"}},
        "$ref": "#/$defs/a~1b/anyOf/0",
    }

    assert "ref-0 ::= null" in schema_grammar(schema).split("\n")


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "string"}, {"type": "integer"}],
        [{"enum": [1, "a"]}, {"const": "b"}],
        [TAGGED["cat"], TAGGED["dog"]],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"], "type": "object"}],
        [{"type": ["string", "null"]}, {"type": "boolean"}],
    ],
)
def test_oneof_may_be_used_where_its_alternatives_exclude_each_other(alternatives: list[Any]) -> None:
    schema_grammar({"oneOf": alternatives, "$defs": TAGGED})


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"type": "number"}, {"type": "integer"}],
        [{"const": 1}, {"enum": [2, 1.0]}],
        [{"properties": {"a": {}}}, {"properties": {"b": {}}}],
        [{}, {"type": "null"}],
        [{"minimum": 3}, {"maximum": 2}],
        [{"type": "string"}, {"properties": {"a": {}}, "required": ["a"]}],
    ],
)
def test_oneof_is_refused_where_two_alternatives_may_hold(alternatives: list[Any]) -> None:
    with pytest.raises(BadGrammar, match="use anyOf"):
        schema_grammar({"oneOf": alternatives})


REFUSED: list[tuple[Any, str]] = [
    ([], "no schema"),
    ({"properties": {"a": False}}, "admits nothing"),
    ({"items": 3}, "no schema"),
    ({"type": "hiccup"}, "a type that is none of"),
    ({"type": 123}, "a type that is none of"),
    ({"enum": []}, "no list"),
    ({"type": "string", "enum": [1]}, "no value is left"),
    ({"enum": ["a"], "minLength": 2}, "`minLength` beside an enumeration"),
    ({"not": {}}, "`not`"),
    ({"if": {}, "then": {}}, "`if`"),
    ({"type": "array", "contains": {}}, "`contains`"),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "`uniqueItems`"),
    ({"type": "integer", "multipleOf": 3}, "`multipleOf`"),
    ({"type": "integer", "minimum": 3.2, "maximum": 3.8}, "no number meets"),
    ({"patternProperties": {"^a$": {}}}, "`patternProperties`"),
    ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, "minProperties"),
    ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "maxProperties"),
    ({"properties": {"a": {}}, "propertyNames": {"maxLength": 1}}, "propertyNames"),
    ({"properties": {}, "required": ["a"], "additionalProperties": False}, "does not admit"),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "a length that its pattern"),
    ({"type": "string", "format": "date", "minLength": 30}, "a length that its pattern"),
    ({"type": "string", "format": "date", "pattern": "^a$"}, "a pattern beside a format"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "a minimum above its maximum"),
    ({"type": "string", "minLength": MAX_COUNT + 1}, "minLength above"),
    ({"type": "array", "items": {}, "minItems": -1}, "no number of things"),
    ({"type": "array", "minItems": True}, "no number of things"),
    ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "above the items"),
    ({"type": "array", "minItems": 2, "maxItems": 1}, "a minimum above its maximum"),
    ({"$ref": "https://example.com/s"}, "refers to another document"),
    ({"$ref": "other.json"}, "refers to another document"),
    ({"$ref": 7}, "refers to another document"),
    ({"$ref": "#/$defs/none"}, "does not contain"),
    ({"$ref": "#"}, "lead to each other"),
    ({"anyOf": [{"anyOf": [{}]}], "allOf": [{"anyOf": [{}]}]}, "joins two that each have a `anyOf`"),
    ({"allOf": [{"additionalProperties": False}, {"properties": {"a": {}}}]}, "joins one that has additionalProp"),
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=[str(schema)[:40] for schema, _ in REFUSED])
def test_what_output_cannot_be_held_to_is_refused_with_its_reason(schema: Any, reason: str) -> None:
    with pytest.raises(BadGrammar, match=reason):
        schema_grammar(schema)


def test_a_schema_that_grows_exponentially_is_refused() -> None:
    def twice(n: int) -> dict[str, Any]:
        return {name: {"$ref": f"#/$defs/d{n + 1}", "type": "object"} for name in "ab"}

    doubling = {f"d{n}": {"properties": twice(n)} for n in range(40)}

    with pytest.raises(BadGrammar, match="too large"):
        schema_grammar({"$ref": "#/$defs/d0", "$defs": {**doubling, "d40": {"type": "object"}}})
