"""Writes the typed keyword arguments of `submit` and `embed` from the models: `python -m docs.typed_fields`.

A test compares. What may be given is looser than the model's field: a part may be a dictionary, a list of parts any
sequence.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, JsonValue
from pydantic.fields import FieldInfo

from celery_llama.protocol import embedding, jobs
from celery_llama.protocol.embedding import EmbedJob
from celery_llama.protocol.jobs import GenerateJob, QueueOptions, one_or_many

FILE = Path(__file__).parents[1] / "producer" / "celery_llama" / "protocol" / "fields.py"
HEAD = '''"""What `submit` and `embed` take by name, for type checkers. Written by `make format` from the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from celery_llama.protocol.jobs import {parts}
'''


def type_of(kind: Any) -> str:
    """How the type of a field, or of a part of one, is written."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is JsonValue or kind is Any:
        return "Any"
    if origin is Annotated:
        return type_of(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(type_of(argument) for argument in arguments)
    if origin is Literal:
        # As ruff quotes.
        return f"Literal[{', '.join(repr(value).replace(chr(39), chr(34)) for value in arguments)}]"
    if origin is list:
        item = type_of(arguments[0])
        return f"Sequence[{item}]" if "dict" in item else f"list[{item}]"
    if origin is dict:
        return f"dict[{', '.join(map(type_of, arguments))}]"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"{kind.__name__} | dict[str, Any]"
    return "None" if kind is NoneType else str(kind.__name__)


def field(name: str, info: FieldInfo) -> str:
    """One field and what it means."""
    alone = "str | " if any(mark == BeforeValidator(one_or_many) for mark in info.metadata) else ""
    return f'    {name}: {alone}{type_of(info.annotation)}\n    """{info.description}"""\n'


def typed_dict(name: str, model: type[BaseModel], base: str, without: Collection[str]) -> str:
    """The class for a model's fields."""
    own = [field(key, info) for key, info in model.model_fields.items() if key not in without]
    first_line = (model.__doc__ or "").splitlines()[0]
    return f'\n\nclass {name}({base}, total=False):\n    """{first_line}"""\n\n{"".join(own)}'


def render() -> str:
    """The file as it should be."""
    queue = QueueOptions.model_fields
    classes = [
        typed_dict("QueueFields", QueueOptions, "TypedDict", ()),
        typed_dict("GenerateFields", GenerateJob, "QueueFields", queue),
        # The texts are what `embed` is given first.
        typed_dict("EmbedFields", EmbedJob, "QueueFields", {*queue, "input"}),
    ]
    body = "".join(classes)
    parts = {
        name
        for name, kind in {**vars(embedding), **vars(jobs)}.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and f"{name} | dict" in body
    }
    return HEAD.format(parts=", ".join(sorted(parts))) + body


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
