"""The container files, held to what can be checked without a container engine."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import flower.options  # type: ignore[import-untyped]  # noqa: F401  defines Flower's options in tornado
import jsonschema
import pytest
import tornado.options
import yaml

from worker.settings import WorkerSettings
from worker.supervisor import server_command

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stages() -> dict[str, list[str]]:
    """The Dockerfile's instructions, by stage."""
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.lstrip().startswith("#")]
    found: dict[str, list[str]] = {}
    for instruction in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if match := re.fullmatch(r"FROM \S+ AS (\S+)", instruction):
            current = found.setdefault(match.group(1), [])
        else:
            current.append(instruction)
    return found


STAGES = stages()
BUILT = {name: service for name, service in COMPOSE["services"].items() if "build" in service}


def exec_form(stage: str, keyword: str) -> list[str]:
    """The words of a stage's ENTRYPOINT, CMD or HEALTHCHECK."""
    (instruction,) = [line for line in STAGES[stage] if line.startswith(keyword)]
    words: list[str] = json.loads(instruction[instruction.index("[") :])
    return words


def command_lines() -> Iterator[list[str]]:
    """Every command that the files run in images of ours."""
    for stage in ("cpu", "gpu", "flower"):
        yield [*exec_form(stage, "ENTRYPOINT"), *exec_form(stage, "CMD")]
        yield exec_form(stage, "HEALTHCHECK")
    for service in BUILT.values():
        assert "entrypoint" not in service
        yield [*exec_form(service["build"]["target"], "ENTRYPOINT"), *service["command"]]


def check_click(command: click.Command, words: list[str]) -> None:
    """Parse words as the command would; raises click.UsageError if it would refuse them."""
    if isinstance(command, click.Group):
        assert words[0] in command.commands
        check_click(command.commands[words[0]], words[1:])
    else:
        command.make_context(command.name, list(words), resilient_parsing=False)


def test_the_compose_file_is_valid_by_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec" / "compose-spec.json").read_text())

    jsonschema.validate(COMPOSE, schema)


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")

    finding = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)

    assert finding.stdout + finding.stderr == ""


@pytest.mark.parametrize("words", list(command_lines()), ids=" ".join)
def test_every_command_exists_and_takes_its_arguments(words: list[str]) -> None:
    program, *rest = words
    if program in PROJECT["scripts"]:
        module, function = PROJECT["scripts"][program].split(":")
        check_click(getattr(importlib.import_module(module), function), rest)
    elif program == "celery":
        assert rest[:2] == ["-A", "producer.celery_app"]
        if rest[2] == "flower":
            known = tornado.options.options.as_dict()
            assert {word.removeprefix("--").partition("=")[0] for word in rest[3:]} <= set(known)
        else:
            subprocess.run([sys.executable, "-m", "celery", *rest[:4], "--help"], check=True, capture_output=True)
    else:
        assert program == "python3"
        compile(rest[1], "healthcheck", "exec")


def test_every_variable_is_a_setting() -> None:
    texts = DOCKERFILE + (ROOT / "docker-compose.yml").read_text() + (ROOT / ".env").read_text()

    names = set(re.findall(r"CELERY_LLAMA_(\w+)", texts))

    assert names
    assert {name.lower() for name in names} <= set(WorkerSettings.model_fields)


@pytest.mark.parametrize("service", BUILT)
def test_every_target_is_a_stage_that_runs_as_an_ordinary_user_and_reports_its_health(service: str) -> None:
    instructions = STAGES[BUILT[service]["build"]["target"]]

    assert "USER 10001" in instructions
    assert any(line.startswith("HEALTHCHECK") for line in instructions)


@pytest.mark.parametrize("extra", re.findall(r"'\.\[(.+?)\]'", DOCKERFILE))
def test_every_extra_that_is_installed_exists(extra: str) -> None:
    assert set(extra.split(",")) <= set(PROJECT["optional-dependencies"])


def test_redis_is_kept_as_the_embedded_server_is() -> None:
    words = COMPOSE["services"]["redis"]["command"]
    embedded = server_command("redis-server", 6379, Path("/data"))

    assert (
        dict(zip(words[1::2], words[2::2], strict=True)).items()
        <= dict(zip(embedded[1::2], embedded[2::2], strict=True)).items()
    )
    assert "--appendonly" in words
    assert "--maxmemory-policy" in words


def test_one_worker_runs_by_default_and_the_gpu_worker_takes_its_place() -> None:
    assert (ROOT / ".env").read_text().splitlines() == ["COMPOSE_PROFILES=cpu"]
    assert COMPOSE["services"]["worker"]["profiles"] == ["cpu"]
    assert COMPOSE["services"]["worker-gpu"]["profiles"] == ["gpu"]
    (device,) = COMPOSE["services"]["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert any("-DGGML_CUDA=on" in line for line in STAGES["build-gpu"])


def test_a_stopping_worker_has_time_to_drain() -> None:
    default = WorkerSettings.model_fields["drain_seconds"].default

    for name in ("worker", "worker-gpu"):
        assert int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s")) > default
