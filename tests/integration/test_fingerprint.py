"""A model's fingerprint: the same for the same weights and vocabulary, another for any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from celery_llama_worker.engine.llama.fingerprint import fingerprint
from celery_llama_worker.errors import StartupError
from tests.tiny_model import tiny_model, write_tiny_adapter, write_tiny_model


def test_it_is_the_files_content_not_its_place(tmp_path: Path) -> None:
    copy = Path(shutil.copy(tiny_model(), tmp_path / "copy.gguf"))

    assert fingerprint(copy) == fingerprint(tiny_model())
    assert len(fingerprint(copy)) == 16


def test_other_weights_another_type_of_them_and_another_template_are_told_apart(tmp_path: Path) -> None:
    files = [
        tiny_model(),
        write_tiny_model(tmp_path / "weights.gguf", seed=1),
        write_tiny_model(tmp_path / "floats.gguf", quantised=False),
        write_tiny_model(tmp_path / "template.gguf", chat_template="{{ messages[0].content }}"),
        write_tiny_adapter(tmp_path / "adapter.gguf"),
        write_tiny_adapter(tmp_path / "other-adapter.gguf", seed=1),
    ]

    assert len({fingerprint(file) for file in files}) == len(files)


def test_the_last_tensor_counts(tmp_path: Path) -> None:
    """Training may have changed some layers only."""
    data = bytearray(tiny_model().read_bytes())
    changed = tmp_path / "changed.gguf"
    data[-20_000:] = bytes(20_000)
    changed.write_bytes(data)

    assert fingerprint(changed) != fingerprint(tiny_model())


def test_a_model_in_several_files_is_all_of_them(tmp_path: Path) -> None:
    for folder, second in ("a", 1), ("b", 2):
        (tmp_path / folder).mkdir()
        write_tiny_model(tmp_path / folder / "m-00001-of-00002.gguf")
        write_tiny_model(tmp_path / folder / "m-00002-of-00002.gguf", seed=second)

    assert fingerprint(tmp_path / "a/m-00001-of-00002.gguf") != fingerprint(tmp_path / "b/m-00001-of-00002.gguf")
    (tmp_path / "a/m-00002-of-00002.gguf").unlink()
    with pytest.raises(StartupError, match=r"m-00002-of-00002\.gguf"):
        fingerprint(tmp_path / "a/m-00001-of-00002.gguf")


def test_a_file_that_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_text("a text")

    with pytest.raises(StartupError, match="not a GGUF file"):
        fingerprint(other)
