"""docs/protocol.md says what the code does."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from celery_llama.protocol import errors
from celery_llama.protocol.embedding import EmbedJob, parse_embed_job
from celery_llama.protocol.events import parse_event
from celery_llama.protocol.jobs import GenerateJob, parse_generate_job
from celery_llama.protocol.names import GENERATE_TASK, Names
from celery_llama.protocol.results import Result
from docs.field_tables import TABLES, render, table
from docs.json_schemas import FOLDER, schemas

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"```\w+ {kind}\n(.*?)```", PROTOCOL, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_schemas_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}

    assert written == schemas(), "run make format"


def test_the_tables_of_fields_are_current() -> None:
    assert render(PROTOCOL) == PROTOCOL, "run make format"


@pytest.mark.parametrize("kind", [GenerateJob, EmbedJob])
def test_every_field_of_a_job_is_in_a_table_with_its_meaning(kind: type[BaseModel]) -> None:
    rows = "".join(table(part) for part in kind.__mro__ if part in TABLES.values())

    for name in kind.model_fields:
        [row] = re.findall(rf"^\| `{name}` \| (.+) \| (.*) \| (.+) \|$", rows, re.MULTILINE)
        assert all((row[0], row[2])), name


@pytest.mark.parametrize(
    ("field", "row"),
    [
        ("max_tokens", "| integer, at least 1 |  |"),
        ("stop", "| list of strings, at most 16 | `[]` |"),
        ("mirostat", "| `0`, `1` or `2` | `0` |"),
        ("logit_bias", "| object of numbers | `{}` |"),
        ("prompt", "| string or list of integers, at least 1 |  |"),
        ("repeat_penalty", "| number, more than 0, at most 10 | `1.0` |"),
        ("role", '| `"system"`, `"developer"`, `"user"`, `"assistant"` or `"tool"` | required |'),
        ("schema", "| object | required |"),
    ],
)
def test_a_table_says_what_a_field_may_be_and_is_by_default(field: str, row: str) -> None:
    assert f"\n| `{field}` {row}" in PROTOCOL


def test_the_examples_are_valid() -> None:
    parse_generate_job(json.loads(block("job")))
    parse_embed_job(json.loads(block("embed")))
    Result.model_validate_json(block("result"))
    assert Result.model_validate_json(block("embeddings")).embeddings
    assert len({parse_event(line).type for line in block("event").splitlines()}) == 5


def test_the_message_is_the_one_that_workers_read() -> None:
    message = json.loads(block("message"))

    arguments, named, _embed = json.loads(base64.b64decode(message["body"]))
    assert (arguments, message["headers"]["task"]) == ([], GENERATE_TASK)
    parse_generate_job(named["job"])


def test_every_key_is_documented() -> None:
    names = Names("celery-llama")

    jobs = (names.job("id"), names.events("id"), names.ended("id"))
    shared = (names.open, names.expiring, names.failed, names.workers, names.reconciler)
    for key in (*jobs, *shared, names.lease(""), names.worker_name("")):
        assert f"`{key.replace('{id}', '{<id>}')}" in PROTOCOL


def test_every_error_code_is_documented() -> None:
    everything = vars(errors).values()
    kinds = [kind for kind in everything if isinstance(kind, type) and issubclass(kind, errors.CeleryLlamaError)]

    for kind in kinds:
        assert f"| `{kind.code}` |" in PROTOCOL, kind


@pytest.mark.parametrize(
    "script", sorted(path.stem for path in (ROOT / "producer" / "celery_llama" / "ledger" / "lua").iterdir())
)
def test_every_script_is_documented(script: str) -> None:
    assert f"| [`{script}`](../producer/celery_llama/ledger/lua/{script}.lua) |" in PROTOCOL


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PROTOCOL):
        assert (ROOT / "docs" / target).exists(), target
