"""Settings: from arguments or the environment, checked before anything is done."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from producer.connection import hide_password
from producer.settings import Settings, resolve_settings


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
