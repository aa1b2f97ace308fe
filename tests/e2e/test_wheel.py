"""The distribution as users install it: the wheel, in an environment of its own, beside modules of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import pytest

from tests.integration.hand import free_port
from tests.unit.test_packaging import PROJECT, ROOT, required

#: Modules that nearly every user of Celery has, with names that were ours once.
OWN_MODULES = ("producer", "worker", "client", "cli", "settings", "engine")


class Environment:
    """A fresh interpreter with the wheel, what the wheel requires (without its extras) and nothing else."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        self._take_over_requirements(self._packages())
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-index"]
        self._checked([*pip, "--no-deps", "--no-compile", str(wheel)])
        for name in OWN_MODULES:
            (folder / f"{name}.py").write_text("mine = True\n")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with the user's modules before all others."""
        program, *arguments = command
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        return subprocess.run(
            [self.python.with_name(program), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def _packages(self) -> Path:
        return Path(
            self._checked([self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
        )

    def _take_over_requirements(self, target: Path) -> None:
        """Link what is installed here, for there need be no package index."""
        names: set[str] = set()
        for requirement in PROJECT["dependencies"]:
            found = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert found
            required(found.group(), names)
        source = Path(sysconfig.get_path("purelib"))
        for name in names:
            for distribution in metadata.distributions(name=name):
                parts = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
                for part in parts:
                    if not (target / part).exists():
                        (target / part).symlink_to(source / part)

    @staticmethod
    def _checked(command: list[str | Path]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Where nothing but the wheel is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    built = subprocess.run([*pip, "-w", folder, ROOT], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    return Environment(folder, wheel)


def test_the_packages_are_the_wheel_s_and_the_user_s_modules_stay_theirs(environment: Environment) -> None:
    code = f"""
from celery_llama import AsyncClient, Client, GenerationFailed
from celery_llama.ledger.operation import load_script
import celery_llama_worker
import {", ".join(OWN_MODULES)}

for package in (celery_llama, celery_llama_worker):
    assert "site-packages" in package.__file__, package.__file__
for module in ({", ".join(OWN_MODULES)}):
    assert module.mine
assert load_script("submit")
print("seen")
"""
    done = environment.run("python", "-W", "error", "-c", "import celery_llama\n" + code)

    assert (done.stdout, done.stderr) == ("seen\n", "")


@pytest.mark.parametrize("command", ["celery-llama", "celery-llama-worker"])
def test_both_commands_run(environment: Environment, command: str) -> None:
    done = environment.run(command, "--version")

    assert (done.stdout, done.stderr) == (f"{command}, version {PROJECT['version']}\n", "")


def test_a_producer_needs_no_llama_cpp(environment: Environment) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"

    for command in (["celery-llama"], ["python", "-m", "celery_llama.cli"]):
        done = environment.run(*command, "--redis-url", url, "submit", "x")
        assert (done.returncode, done.stderr.partition(" at ")[0]) == (3, "Error: cannot reach Redis")
    assert environment.run("python", "-c", "import llama_cpp").returncode == 1
    worker = environment.run("celery-llama-worker", "start", "--redis-url", url)
    assert worker.returncode == 1
    assert worker.stderr.endswith("is not installed: pip install 'celery-llama[worker]'\n")


def test_type_checkers_read_the_packages_annotations(environment: Environment) -> None:
    where = environment.run("python", "-c", "import celery_llama; print(celery_llama.__file__)").stdout.strip()

    for name in ("celery_llama", "celery_llama_worker"):
        assert (Path(where).parent.with_name(name) / "py.typed").exists()
