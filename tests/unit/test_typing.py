"""What a user's type checker says of the client: wrong calls are errors, right ones are not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from celery_llama.client.flows import prepare
from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import Message, TextPart
from docs import typed_fields

ROOT = Path(__file__).parents[2]

BEGINNING = """
from __future__ import annotations

import asyncio
from typing import Any, assert_type

from pydantic import BaseModel

from celery_llama import AsyncClient, Client, GenerateJob, GenerationFailed, JobHandle, Message, Result


class City(BaseModel):
    name: str

"""
RIGHT = """
def name_of(client: Client, question: str, options: dict[str, Any]) -> str:
    messages = [{"role": "user", "content": question}]
    job = client.submit(messages=messages, response_model=City, max_tokens=64, temperature=0, stop="\\n", **options)
    city = job.result(timeout=60).parsed
    assert_type(job, JobHandle[City])
    assert_type(city, City | None)
    return "" if city is None else city.name


async def names(client: AsyncClient, job_id: str) -> list[str]:
    job = await client.submit("A city:", response_model=City, response_format={"type": "text"}, timeout=3)
    found = [(await handle.result()).parsed for handle in (job, client.job(job_id, response_model=City))]
    return [city.name for city in found if city is not None]


def anything(handle: JobHandle, result: Result) -> str:
    return handle.id + result.text


with Client(namespace="mine") as client:
    plain = client.submit(GenerateJob(prompt=[1, 2]))
    assert_type(plain.result().parsed, None)
    chat = client.submit(messages=(Message(role="user", content="x"), {"role": "user", "content": "y"}), n=2)
    anything(plain, client.submit("x", response_model=City).result())
    vectors: list[list[float]] | None = client.embed(["a"], normalize=False, priority=1).result().embeddings
    print(name_of(client, "?", {"seed": 1}), GenerationFailed("code", "message").failure_code)
    asyncio.run(names(AsyncClient(), chat.id))
"""
WRONG = """
with Client() as client:
    client.submit("x", max_token=3)
    client.submit("x", temperature="hot")
    client.submit("x").result().parsed.name
"""
WRONG_AWAITED = """
from celery_llama import Clint


async def ask(client: AsyncClient) -> None:
    await client.submit("x", temprature=0.5)
    await client.embed("x", dimensions="many")
    name: str = (await (await client.submit("x", response_model=City)).result()).parsed
"""


def test_the_typed_arguments_are_the_models_fields() -> None:
    assert typed_fields.FILE.read_text(encoding="utf-8") == typed_fields.render(), "run make format"


def test_a_user_s_type_checker_finds_wrong_calls_and_only_these(tmp_path: Path) -> None:
    for name, script in {"right": RIGHT, "wrong": WRONG, "awaited": WRONG_AWAITED}.items():
        (tmp_path / f"{name}.py").write_text(BEGINNING + script)
    # One cache for all runs of the test: without it, mypy reads pydantic anew for ten seconds.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "of_users"), "right.py", "wrong.py", "awaited.py"]

    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert said.stderr == ""
    assert re.findall(r"^(\w+)\.py:\d+: error: .*\[(.+)\]$", said.stdout, re.MULTILINE) == [
        *(("awaited", kind) for kind in ("attr-defined", "call-arg", "arg-type", "assignment")),
        *(("wrong", kind) for kind in ("call-arg", "arg-type", "attr-defined")),
    ], said.stdout
    assert said.stdout.count("did you mean") == 2  # of the two misspelt fields


@pytest.mark.parametrize("wrong", [int, "City", TextPart(type="text", text="x"), dict[str, str]], ids=repr)
def test_a_response_model_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidJob, match="response_model"):
        prepare("x", wrong, {})  # type: ignore[arg-type]


def test_parts_may_be_given_in_any_sequence() -> None:
    job = prepare(None, None, {"messages": (Message(role="user", content="x"), {"role": "user", "content": "y"})})

    assert [message.text for message in job.messages or ()] == ["x", "y"]
