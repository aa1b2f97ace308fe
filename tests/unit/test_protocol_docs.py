"""docs/protocol.md says what the code does."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from docs.json_schemas import FOLDER, schemas
from producer import errors
from producer.embedding import parse_embed_job
from producer.events import parse_event
from producer.jobs import parse_generate_job
from producer.names import GENERATE_TASK, Names
from producer.results import Result

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.search(rf"```\w+ {kind}\n(.*?)```", PROTOCOL, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_schemas_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}

    assert written == schemas(), "run make format"


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

    jobs = (names.job("id"), names.events("id"))
    for key in (*jobs, names.open, names.expiring, names.failed, names.lease(""), names.reconciler):
        assert f"`{key.replace('{id}', '{<id>}')}" in PROTOCOL


def test_every_error_code_is_documented() -> None:
    everything = vars(errors).values()
    kinds = [kind for kind in everything if isinstance(kind, type) and issubclass(kind, errors.CeleryLlamaError)]

    for kind in kinds:
        assert f"| `{kind.code}` |" in PROTOCOL, kind


@pytest.mark.parametrize("script", sorted(path.stem for path in (ROOT / "producer" / "lua").iterdir()))
def test_every_script_is_documented(script: str) -> None:
    assert f"| [`{script}`](../producer/lua/{script}.lua) |" in PROTOCOL


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PROTOCOL):
        assert (ROOT / "docs" / target).exists(), target
