"""Settings: from arguments or the environment, checked before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from celery_llama.client.connection import hide_password
from celery_llama.settings import Settings, resolve_settings
from celery_llama_worker.demo.run import worker_command
from celery_llama_worker.settings import WorkerSettings


def test_the_environment_gives_what_the_arguments_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_LLAMA_REDIS_URL", "redis://elsewhere:1/2")
    monkeypatch.setenv("CELERY_LLAMA_NAMESPACE", "mine")

    settings = Settings(namespace="yours")

    assert settings.redis_url == "redis://elsewhere:1/2"
    assert settings.names.namespace == "yours"


def test_a_url_replaces_the_url_of_the_settings_and_nothing_else() -> None:
    settings = resolve_settings("redis://there:1/0", Settings(redis_url="redis://here:1/0", namespace="mine"))

    assert settings.redis_url == "redis://there:1/0"
    assert settings.namespace == "mine"


def test_a_namespace_replaces_the_namespace_of_the_settings_and_nothing_else() -> None:
    settings = resolve_settings(None, Settings(redis_url="redis://here:1/0", namespace="mine"), "yours")

    assert settings.redis_url == "redis://here:1/0"
    assert settings.namespace == "yours"


def test_what_is_wrong_with_a_url_is_said_without_its_password() -> None:
    with pytest.raises(ValueError, match="redis_url") as caught:
        resolve_settings("http://user:secret@there", None)

    assert "secret" not in str(caught.value)


def test_settings_given_without_a_url_stay_as_they_are() -> None:
    settings = Settings(namespace="mine")

    assert resolve_settings(None, settings) is settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "a b"},
        {"namespace": ""},
        {"namespace": "a{b}"},
        {"redis_url": "http://localhost"},
        {"redis_url": "sentinel://localhost"},
        {"lease_seconds": 2},
        {"max_job_bytes": 0},
        {"redis_timeout_seconds": 0},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@host:1/0",
        "redis://user:secret@host:1/0",
        "redis://user:sec@secret@host:1/0",
        "rediss://host:1/0?password=secret",
        "redis://secret@host:1/0",
    ],
)
def test_a_url_is_shown_without_its_password(url: str) -> None:
    shown = hide_password(url)

    assert "secret" not in shown
    assert "host:1/0" in shown


@pytest.mark.parametrize(
    "given",
    ["red=/a/r.gguf,blue = b=c.gguf", '{"red": "/a/r.gguf", "blue": "b=c.gguf"}', " red=/a/r.gguf, blue=b=c.gguf ,"],
)
def test_adapters_are_named_files(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_LLAMA_LORA", given)

    expected = {"red": Path("/a/r.gguf"), "blue": Path("b=c.gguf")}
    assert WorkerSettings().lora == expected
    assert WorkerSettings.model_validate({"lora": given}).lora == expected


@pytest.mark.parametrize("given", ["red", "=a.gguf", "red=", "red=a,red=b", "a b=c.gguf", "{", '["red"]', '{"red": 1}'])
def test_adapters_without_a_name_or_a_file_are_refused(given: str) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings.model_validate({"lora": given})


def test_the_demos_worker_gets_the_settings_that_the_demo_was_given() -> None:
    given = WorkerSettings(slots=3, share_prefixes=False, lora={"a": Path("a b.gguf"), "b": Path("/b.gguf")})

    command = worker_command(given)
    options = command[command.index("start") + 1 :]

    names = [option.removeprefix("--").replace("-", "_") for option in options[::2]]
    told = WorkerSettings.model_validate(dict(zip(names, options[1::2], strict=True)))
    assert told.model_dump(include=given.model_fields_set) == given.model_dump(include=given.model_fields_set)
