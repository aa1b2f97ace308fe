"""Writes docs/protocol.md's tables of job fields from the models: `python -m docs.field_tables`. A test compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from celery_llama.protocol.embedding import EmbedJob
from celery_llama.protocol.jobs import (
    GenerateJob,
    Guidance,
    JsonSchema,
    LoraAdapter,
    Message,
    QueueOptions,
    ResponseFormat,
)
from celery_llama.protocol.sampling import MAX_INT, SamplingOptions
from docs.settings_table import replace_block

PROTOCOL = Path(__file__).parent / "protocol.md"
#: Each table's name and the class whose own fields it has.
TABLES: dict[str, type[BaseModel]] = {
    "generate": GenerateJob,
    "sampling": SamplingOptions,
    "queue": QueueOptions,
    "embed": EmbedJob,
    "message": Message,
    "response_format": ResponseFormat,
    "json_schema": JsonSchema,
    "guidance": Guidance,
    "lora": LoraAdapter,
}
HEAD = "| field | type | default | meaning |\n| --- | --- | --- | --- |\n"


def type_of(schema: dict[str, Any]) -> str:
    """A field's type in words, from its JSON Schema; of a list's items and an object's values only what they are."""
    if "anyOf" in schema:
        return " or ".join(type_of(kind) for kind in schema["anyOf"] if kind.get("type") != "null")
    if "const" in schema or "enum" in schema:
        *others, last = (f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
        return f"{', '.join(others)} or {last}" if others else last
    if schema.get("type") == "array":
        return f"list of {_plural(schema['items'])}{_bounds(schema.get('minItems'), schema.get('maxItems'))}"
    if schema.get("type") == "object":
        [values] = schema.get("patternProperties", {"": schema.get("additionalProperties")}).values()
        return f"object of {_plural(values)}" if isinstance(values, dict) and "type" in values else "object"
    if schema.get("type") == "string":
        bounds = _bounds(schema.get("minLength"), schema.get("maxLength"))
        return f"string{bounds}{' characters' * bool(bounds)}"
    above = f", more than {_number(schema['exclusiveMinimum'])}" if "exclusiveMinimum" in schema else ""
    return f"{_name(schema)}{above}{_bounds(schema.get('minimum'), schema.get('maximum'))}"


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("type") or schema["$ref"].rpartition("/")[2])


def _plural(schema: dict[str, Any]) -> str:
    return f"{_name(schema)}s"


def _bounds(least: float | None, most: float | None) -> str:
    if most is None or most == MAX_INT:  # what a C int holds is no limit that anybody would look for
        return "" if least is None else f", at least {_number(least)}"
    return f", at most {_number(most)}" if least is None else f", {_number(least)} to {_number(most)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else str(value)


def row(name: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    """One field's row."""
    if field.is_required():
        default = "required"
    else:
        value = field.get_default(call_default_factory=True)
        plain = value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
        default = "" if plain is None else f"`{json.dumps(plain)}`"
    return f"| `{name}` | {type_of(schema)} | {default} | {field.description or ''} |\n"


def table(kind: type[BaseModel]) -> str:
    """The fields that a class adds to those of its bases."""
    properties = kind.model_json_schema()["properties"]
    fields = {name: field for name, field in kind.model_fields.items() if name in kind.__annotations__}
    return HEAD + "".join(
        row(field.alias or name, field, properties[field.alias or name]) for name, field in fields.items()
    )


def render(document: str) -> str:
    """The document with the tables as they should be."""
    for name, kind in TABLES.items():
        document = replace_block(document, f"fields: {name}", table(kind))
    return document


if __name__ == "__main__":
    PROTOCOL.write_text(render(PROTOCOL.read_text(encoding="utf-8")), encoding="utf-8")
