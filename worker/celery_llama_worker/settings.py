"""Settings of the worker: options, variables `CELERY_LLAMA_<NAME>`, defaults. No I/O, any thread."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, StringConstraints, model_validator
from pydantic_settings import NoDecode

from celery_llama.protocol.jobs import AdapterName
from celery_llama.settings import Settings

WorkerUrl = Annotated[str, StringConstraints(pattern=r"^(embedded$|(rediss?|unix)://)")]


def default_cache_dir() -> Path:
    """The user's cache folder, by the XDG base directory specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "celery-llama"


def _named_files(value: Any) -> Any:
    """`name=path,name=path`, or a JSON object."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return json.loads(value)
    files: dict[str, str] = {}
    for pair in filter(str.strip, value.split(",")):
        name, _, path = (part.strip() for part in pair.partition("="))
        if not name or not path or name in files:
            raise ValueError("give name=path,name=path, each name once")
        files[name] = path
    return files


NamedFiles = Annotated[dict[AdapterName, Path], NoDecode, BeforeValidator(_named_files)]


class WorkerSettings(Settings):
    """Everything a worker may be told."""

    redis_url: WorkerUrl = "redis://localhost:6379/0"
    """Redis: `redis://`, `rediss://` (TLS) or `unix://`; or `embedded`, a server that is started on this machine."""
    model: str = "demo"
    """A GGUF file, `demo` for the small model of the `demo` extra, or `hf://owner/repo/file.gguf`."""
    model_name: str = ""
    """The name that results carry; the model file's own name if empty."""
    lora: NamedFiles = Field(default_factory=dict)
    """LoRA adapters that jobs may choose by name: `name=path,name=path`, or a JSON object."""
    worker_name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """The worker's name; must be unique, so by default it names machine and process."""
    cache_dir: Path = Field(default_factory=default_cache_dir)
    """Where re-quantised and downloaded models are kept; by default `celery-llama` in the user's cache folder."""

    slots: int = Field(default=32, ge=1, le=255)
    """Sequences that are decoded together; llama.cpp holds at most 256, one of which is kept free to move others."""
    lookahead: int = Field(default=8, ge=0)
    """Jobs beyond the slots that are claimed and prepared, so that a free slot is filled in the next step."""
    memory: Literal["partitioned", "unified"] = "partitioned"
    """`unified`: all slots share one pool of cells, for few long jobs among many short ones; not reproducible."""
    ctx_per_slot: int = Field(default=1024, ge=64)
    """Cells of one slot: prompt and output of one job. The memory needed is slots times this."""
    chunk_tokens: int = Field(default=64, ge=8)
    """Prompts are cut at multiples of this: the longest wait that one causes its neighbours, the grain of sharing."""
    prefill_tokens: int = Field(default=512, ge=8)
    """Most prompt tokens that a step reads, all jobs together."""
    share_prefixes: bool = True
    """Whether jobs with a common beginning read it once."""
    prefix_store_mib: int = Field(default=0, ge=0)
    """Host memory for beginnings of prompts that lost their slot, in MiB; 0 keeps none."""
    gpu_layers: int = -1
    """Layers on the GPU; -1 is all of them."""
    exact_resume: bool = False
    """Whether a job that is taken up again decodes what was said as the first time, where output is reproducible."""
    probe_seconds: float = Field(default=60.0, ge=0)
    """How long a starting worker may take to find out whether output is reproducible; else it is said not to be."""
    threads: int = Field(default=0, ge=0)
    """Compute threads; 0 is one for each core."""
    flash_attention: Literal["auto", "on", "off"] = "auto"
    """Fused attention; `auto` uses it where the model and the device allow."""
    cache_type: Literal["f16", "q8_0", "f32"] = "f16"
    """Type of the cells' keys and values."""

    connect_seconds: float = Field(default=30.0, ge=0)
    """How long a starting worker waits for Redis."""
    max_attempts: PositiveInt = 3
    """Attempts after which a job that keeps killing its worker is failed."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """How long a stopping worker lets running jobs finish before it hands them back."""
    stall_seconds: PositiveFloat = 60.0
    """Without progress for this long, the worker gives up its lease and exits."""
    max_job_seconds: PositiveFloat = 3600.0
    """Longest time that any job may run; a job's own `timeout` may be shorter."""
    outbox_tokens: PositiveInt = 100_000
    """Tokens that may wait for Redis before the engine pauses."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is written to stderr."""

    @property
    def step_seconds(self) -> float:
        """How long a step may read prompts: as long as a worker's signs of life are apart."""
        return self.lease_seconds / 5

    @property
    def places(self) -> int:
        """Messages that a worker takes at a time."""
        return self.slots + self.lookahead

    @property
    def cells_per_job(self) -> int:
        """Most tokens of a job, prompt and output together."""
        return self.ctx_per_slot * (self.slots if self.memory == "unified" else 1)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.chunk_tokens > self.prefill_tokens:
            raise ValueError("chunk_tokens must not exceed prefill_tokens: a step must be able to read a whole chunk")
        if self.lease_seconds < 2 * self.sweep_seconds:
            raise ValueError("lease_seconds must be at least twice sweep_seconds")
        return self
