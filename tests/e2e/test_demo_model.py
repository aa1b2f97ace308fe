"""The demo model: made once, complete or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.errors import StartupError
from celery_llama_worker.model_files import resolve_model
from celery_llama_worker.settings import WorkerSettings


def demo(cache_dir: Path) -> Path:
    return resolve_model(WorkerSettings(model="demo", cache_dir=cache_dir))


def test_the_demo_model_is_made_once_and_found_again(tmp_path: Path) -> None:
    first = demo(tmp_path)
    written = first.stat().st_mtime_ns

    assert first.name == "SmolLM2-135M-Instruct.Q8_0.gguf"
    assert demo(tmp_path) == first
    assert first.stat().st_mtime_ns == written
    assert list(first.parent.iterdir()) == [first]
    with LlamaModel(first) as model:
        assert model.chat_template
        assert model.can_trim


def test_two_workers_that_start_at_once_both_get_it(tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(demo(tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found[0] == found[1]
    with LlamaModel(found[0]):
        assert list(found[0].parent.iterdir()) == [found[0]]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StartupError, match="choose another folder with CELERY_LLAMA_CACHE_DIR"):
        demo(tmp_path / "file")
