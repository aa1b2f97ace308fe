"""`celery-llama-worker check`: tries everything that a worker needs, and says what is wrong. Main thread."""

from __future__ import annotations

from collections.abc import Callable

import redis

from celery_llama.client.connection import hide_password
from celery_llama.protocol.errors import CeleryLlamaError, ServerUnreachable
from celery_llama_worker.engine.embedding.embedder import LlamaEmbedder
from celery_llama_worker.engine.llama.devices import describe, found_devices
from celery_llama_worker.engine.llama.engine import LlamaEngine, LlamaModel
from celery_llama_worker.engine.plan import Piece, Plan
from celery_llama_worker.engine.probe import probe
from celery_llama_worker.errors import EngineFault
from celery_llama_worker.model_files import load_model
from celery_llama_worker.server import wait_for_server
from celery_llama_worker.settings import WorkerSettings

#: Celery 5.7 asks for this version of Redis.
_OLDEST_SERVER = (6, 2)

Say = Callable[[str], object]


def check_all(settings: WorkerSettings, say: Say) -> bool:
    """Try server and model, saying a line for each; returns whether a worker could start. Raises ServerUnreachable."""
    say(f"ok    settings: {settings.slots} slots of {settings.ctx_per_slot} cells, lease {settings.lease_seconds} s")
    unreachable: ServerUnreachable | None = None
    try:
        _check_server(settings, say)
    except ServerUnreachable as error:
        unreachable = error
        say(f"WRONG server: {error}")
    try:
        _check_model(settings, say)
    except CeleryLlamaError as error:
        say(f"WRONG model: {error}")
        return False
    if unreachable is not None:
        raise unreachable
    return True


def _check_server(settings: WorkerSettings, say: Say) -> None:
    wait_for_server(settings.model_copy(update={"connect_seconds": 0.0}))
    with redis.Redis.from_url(settings.redis_url) as connection:
        info = connection.info()
        version = str(info.get("redis_version", "0"))
        say(f"ok    server: {hide_password(settings.redis_url)}, version {info.get('valkey_version', version)}")
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_SERVER:
            say("      but: older than 6.2, which Celery 5.7 needs")
        if not info.get("aof_enabled"):
            say("      but: no append-only file, so queued jobs do not survive the server; set `appendonly yes`")
        if info.get("maxmemory") and info.get("maxmemory_policy") != "noeviction":
            say("      but: the server may evict jobs when memory runs short; set `maxmemory-policy noeviction`")


def _check_model(settings: WorkerSettings, say: Say) -> None:
    with load_model(settings) as model:
        say(f"ok    model: {model.name} ({model.architecture}, {model.n_vocab} tokens, {model.path})")
        if model.pooling is None:
            _check_generating(settings, model, say)
        else:
            _check_embedding(settings, model, say)


def _check_generating(settings: WorkerSettings, model: LlamaModel, say: Say) -> None:
    if model.chat_template is None:
        say("      but: it has no chat template, so it takes `prompt` and no `messages`")
    if model.adapters:
        say(f"ok    adapters: {', '.join(model.adapters)}")
    with LlamaEngine(model, settings) as engine:
        report = probe(
            engine,
            model.n_vocab,
            settings.chunk_tokens,
            step_seconds=settings.step_seconds,
            limit_seconds=settings.probe_seconds,
        )
        needed = engine.limits.cell_bytes * engine.limits.cells_per_slot * engine.limits.slots
    say(f"ok    memory: the cells take about {needed / 2**30:.1f} GiB")
    say(f"ok    device: {describe(found_devices(), settings.gpu_layers)}")
    say(f"ok    speed: {1 / report.speed.seconds_per_token:.0f} tokens/s read, alone")
    same = {True: "the same bits", False: "other bits"}
    if settings.memory == "partitioned":
        found = f"decoding gives {same[report.decode]}, reading {same[report.prefill]}"
        say(f"ok    probe: alone and among others, {found} ({report.looked_at})")
    if not report.reproducible:
        say("      but: greedy output may depend on who shares the batch; results say `reproducible: false`")


def _check_embedding(settings: WorkerSettings, model: LlamaModel, say: Say) -> None:
    with LlamaEmbedder(model, settings) as embedder:
        (result,) = embedder.execute(
            Plan(calls=[[Piece(0, 0, model.tokenize("a", add_special=True, parse_special=False), None)]])
        )
        if result.error is not None:
            raise EngineFault(f"the device cannot embed: {result.error.message}")
        say(f"ok    device: {describe(found_devices(), settings.gpu_layers)}")
        say(f"ok    output: makes embeddings of {model.n_embed} values ({model.pooling}), and generates no text")
