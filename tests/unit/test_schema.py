"""How JSON schemas are rewritten before llama.cpp's converter reads them."""

from __future__ import annotations

from typing import Any

import pytest

from worker.engine.schema import MAX_COUNT, mend, normalise
from worker.errors import BadGrammar

ANY = {"anyOf": [{"type": name} for name in ("object", "array", "string", "number", "boolean", "null")]}


def rewritten(schema: Any) -> dict[str, Any]:
    """The rewritten schema without its definitions."""
    result = normalise(schema)
    del result["$defs"]
    return result


def test_references_get_names_of_their_own() -> None:
    schema = {
        "$defs": {"string": {"type": "integer"}, "a": {"properties": {"string": {"const": 1}}}},
        "anyOf": [{"$ref": "#/$defs/string"}, {"$ref": "#/$defs/a/properties/string"}],
    }

    assert normalise(schema) == {
        "anyOf": [{"$ref": "#/$defs/ref-0"}, {"$ref": "#/$defs/ref-1"}],
        "$defs": {"ref-0": {"type": "integer"}, "ref-1": {"const": 1}},
    }


def test_a_schema_may_refer_to_itself() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}

    assert normalise(tree)["$defs"]["ref-0"]["properties"]["children"]["items"] == {"$ref": "#/$defs/ref-0"}


def test_references_may_be_escaped_and_go_through_lists() -> None:
    schema = {"$defs": {"a/b": {"anyOf": [{"type": "null"}]}}, "$ref": "#/$defs/a~1b/anyOf/0"}

    assert normalise(schema)["$defs"] == {"ref-0": {"type": "null"}}


@pytest.mark.parametrize("reference", ["#/$defs/none", "#/$defs/a/x", "https://example.com/s", "other.json", 7])
def test_a_reference_to_nowhere_is_refused(reference: Any) -> None:
    with pytest.raises(BadGrammar, match="refers to"):
        normalise({"$defs": {"a": {"type": "string"}}, "$ref": reference})


def test_a_list_of_types_keeps_what_stands_beside_it() -> None:
    assert rewritten({"type": ["string", "null"], "maxLength": 5}) == {
        "anyOf": [{"type": "string", "maxLength": 5}, {"type": "null", "maxLength": 5}]
    }


@pytest.mark.parametrize("schema", [{}, True, {"title": "Anything", "description": "at all"}])
def test_a_schema_that_says_nothing_allows_every_value(schema: Any) -> None:
    assert rewritten({"type": "array", "items": schema}) == {"type": "array", "items": ANY}


def test_an_enumeration_counts_more_than_its_type() -> None:
    assert rewritten({"type": ["string", "null"], "enum": ["a", None], "title": "T"}) == {"enum": ["a", None]}


def test_a_single_allof_is_what_it_contains() -> None:
    assert rewritten({"allOf": [{"enum": [1, 2]}], "default": 1}) == {"enum": [1, 2]}


def test_long_maxima_are_not_counted() -> None:
    assert rewritten({"type": "string", "maxLength": MAX_COUNT + 1}) == {"type": "string", "maxLength": None}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": MAX_COUNT + 1},
        {"type": "array", "items": {}, "minItems": -1},
        {"type": "string", "pattern": "^a{100000}$"},
        {"properties": {"a": False}},
        {"items": 3},
        [],
    ],
)
def test_what_would_be_too_large_or_makes_no_sense_is_refused(schema: Any) -> None:
    with pytest.raises(BadGrammar):
        normalise(schema)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"^\d{4}$", "^[0-9]{4}$"),
        (r"^[\d_]\w$", "^[0-9_][a-zA-Z0-9_]$"),
        (r"^[^a]$", r'^[^"\\\x00-\x1F\x7Fa]$'),
        (r"^[[^]\[^$", r"^[[^]\[^$"),
    ],
)
def test_patterns_keep_to_what_a_string_may_contain(pattern: str, expected: str) -> None:
    assert rewritten({"type": "string", "pattern": pattern})["pattern"] == expected


def test_strings_are_kept_free_of_control_characters() -> None:
    converted = 'char ::= [^"\\\\] | "\\\\" x\ndot ::= [^\\x0A\\x0D]\nroot ::= [^"\\\\]'

    assert mend(converted).split("\n") == [
        r'char ::= [^"\\\x00-\x1F\x7F] | "\\" x',
        r'dot ::= [^"\\\x00-\x1F\x7F]',
        r'root ::= [^"\\]',
    ]
