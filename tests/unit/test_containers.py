"""The container files, held to what can be checked without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flower.options  # noqa: F401  defines Flower's options in tornado
import jsonschema
import pytest
import tornado.options
import yaml

from celery_llama_worker.embedded.supervisor import server_command
from celery_llama_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
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


def words_of(stage: str, keyword: str) -> list[str]:
    """The words of a stage's ENTRYPOINT, CMD or HEALTHCHECK; of a shell's command line, if one is called."""
    (instruction,) = [line for line in STAGES[stage] if line.startswith(keyword)]
    words: list[str] = json.loads(instruction[instruction.index("[") :])
    return shlex.split(words[2]) if words[:2] == ["sh", "-c"] else words


def command_lines() -> Iterator[list[str]]:
    """Every command that the files run in images of ours."""
    for stage in ("cpu", "gpu", "flower"):
        yield [*words_of(stage, "ENTRYPOINT"), *words_of(stage, "CMD")]
        yield words_of(stage, "HEALTHCHECK")
    for service in BUILT.values():
        assert "entrypoint" not in service
        yield [*words_of(service["build"]["target"], "ENTRYPOINT"), *service["command"]]


def test_the_compose_file_is_valid_by_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec" / "compose-spec.json").read_text())

    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")

    finding = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)

    assert finding.stdout + finding.stderr == ""


def asked_for_help(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Call a command with --help at its end: it then only says whether it knows the words before."""
    program, *rest = words
    module, function = PROJECT["scripts"][program].split(":") if program != "celery" else ("celery.__main__", "main")
    code = f"import sys; from {module} import {function} as run; sys.argv[0] = {program!r}; run()"
    return subprocess.run([sys.executable, "-c", code, *rest, "--help"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", sorted({shlex.join(words) for words in command_lines()}))
def test_every_command_exists_and_takes_its_arguments(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "python3":
        compile(words[2], "healthcheck", "exec")
    elif "flower" in words:  # which takes its options past click
        known = tornado.options.options.as_dict()
        assert {word.removeprefix("--").partition("=")[0] for word in words[words.index("flower") + 1 :]} <= set(known)
    else:
        asked = asked_for_help(words)
        assert asked.returncode == 0, asked.stderr


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    assert asked_for_help(["celery-llama-worker", "start", "--no-such-option"]).returncode == 2
    assert asked_for_help(["celery-llama-worker", "begin"]).returncode == 2


def test_a_flower_is_for_this_machine_or_has_a_password() -> None:
    documented = re.findall(r"^.*celery -A celery_llama.celery_app flower(.*)$", OPERATIONS, re.MULTILINE)

    assert documented
    assert all("--address=127.0.0.1" in options or "--basic_auth=" in options for options in documented)
    assert all(port.startswith("127.0.0.1:") for port in COMPOSE["services"]["flower"]["ports"])


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
