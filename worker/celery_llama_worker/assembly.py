"""The composition root: settings -> server -> model -> engine -> threads -> pool -> Celery. The only place that builds.

Leaving a block closes what it opened, in reverse order; that is how the worker stops. Runs on the main thread.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import redis
from celery import Celery

from celery_llama.celery_app import PRIORITIES, make_app, publish
from celery_llama.client.connection import connect
from celery_llama.ledger.ledger import TaskState, Worker
from celery_llama.protocol.workers import WorkerFacts
from celery_llama_worker.bookkeeping.admission import Admission, Identity, Preparer
from celery_llama_worker.bookkeeping.keeper import Keeper
from celery_llama_worker.bookkeeping.publisher import Publisher
from celery_llama_worker.bookkeeping.reconciler import Reconciler
from celery_llama_worker.bookkeeping.urgent import UrgentWatch
from celery_llama_worker.broker import backend, tasks, transport
from celery_llama_worker.broker.delivery import Deliveries
from celery_llama_worker.broker.monitoring import GatherEvents
from celery_llama_worker.broker.pool import EnginePool, PoolParts
from celery_llama_worker.broker.prefetch import Prefetch, prefetch_step
from celery_llama_worker.broker.statistics import Statistics
from celery_llama_worker.engine.attempt import A
from celery_llama_worker.engine.embedding.embedder import LlamaEmbedder
from celery_llama_worker.engine.embedding.preparer import EmbedPreparer
from celery_llama_worker.engine.embedding.scheduler import EmbedScheduler
from celery_llama_worker.engine.llama.devices import describe, found_devices
from celery_llama_worker.engine.llama.engine import LlamaEngine, LlamaModel
from celery_llama_worker.engine.llama.fingerprint import fingerprint
from celery_llama_worker.engine.outputs import EndReason
from celery_llama_worker.engine.plan import Adapters, Engine
from celery_llama_worker.engine.preparing.preparer import GeneratePreparer
from celery_llama_worker.engine.probe import ProbeReport, probe
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.engine.scheduling.sequence import Attempt
from celery_llama_worker.engine.trial import measure_speed
from celery_llama_worker.logs import configure_logging
from celery_llama_worker.model_files import load_model
from celery_llama_worker.runner import End, Runner, Scheduler
from celery_llama_worker.server import wait_for_server
from celery_llama_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

#: How long the engine thread may wait for the interpreter's lock each time it comes back from llama.cpp.
#: With Python's 5 ms, another thread that was busy all the time made a step 23 ms longer; with 0.05 to 0.5 ms, 2 to 6.
_SWITCH_SECONDS = 0.0002

#: The process has to go because a part of it failed; its jobs go to others when the lease lapses.
EXIT_CRASHED = 70


#: How long a stopping worker tries to write what the engine has said.
_WRITE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What may be replaced: by a benchmark that looks on, by a test that makes it fail."""

    engine: type[LlamaEngine] = LlamaEngine
    scheduler: type[GenerateScheduler] = GenerateScheduler
    publisher: type[Publisher] = Publisher
    runner: type[Runner[Any]] = Runner


def run_worker(settings: WorkerSettings, parts: Parts | None = None) -> int:
    """Work until told to stop; returns the exit code. Raises CeleryLlamaError if it cannot begin."""
    parts = parts or Parts()
    configure_logging(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)
    wait_for_server(settings)
    with load_model(settings) as model, _machinery(settings, model, parts) as machinery:
        transport.install()
        app, outcomes = make_app(settings), tasks.Outcomes()
        backend.install(app)
        tasks.register(app, outcomes)
        tasks.register_cancel_command()
        with _running(settings, machinery, app, outcomes, parts) as pool_parts:
            return _serve(settings, app, pool_parts)


@dataclass(frozen=True, slots=True)
class Machinery(Generic[A]):
    """What a model needs to be of use: to generate text, or to embed texts."""

    #: What the worker's lease says of it.
    facts: WorkerFacts
    engine: Engine
    scheduler: Scheduler[A]
    preparer: Preparer[A]
    #: For Flower's Pool tab.
    description: dict[str, Any]


@contextmanager
def _machinery(settings: WorkerSettings, model: LlamaModel, parts: Parts) -> Iterator[Machinery[Any]]:
    """Build what the model's file asks for."""
    logger.info("computing on %s", describe(found_devices(), settings.gpu_layers))
    if model.pooling is None:
        with parts.engine(model, settings) as engine:
            logger.info("%s: %d slots of %d cells", model.name, settings.slots, settings.ctx_per_slot)
            yield _generating(settings, model, engine, parts.scheduler)
    else:
        with LlamaEmbedder(model, settings) as embedder:
            limits = embedder.limits
            logger.info("%s: embeddings of %d values (%s)", model.name, model.n_embed, model.pooling)
            speed = measure_speed(embedder, model.n_vocab, min(settings.chunk_tokens, limits.cells_per_slot))
            scheduler = EmbedScheduler(limits, step_seconds=settings.step_seconds, speed=speed)
            _log_pace(settings, scheduler.counters.longest_call_seconds)
            preparer = EmbedPreparer(model, settings, limits.cells_per_slot)
            description = {"slots": limits.slots, "embedding-values": model.n_embed}
            facts = _facts(settings, model, kind="embed", slots=limits.slots)
            yield Machinery(facts, embedder, scheduler, preparer, description)


def _generating(
    settings: WorkerSettings, model: LlamaModel, engine: LlamaEngine, scheduler_class: type[GenerateScheduler]
) -> Machinery[Attempt]:
    """Find out whether output depends on who shares the batch, and how fast the machine is; results say the former."""
    report = _probe(settings, model, engine, ())
    # Adapters are float matrices as a rule, and those are computed differently in company.
    adapters: Adapters = tuple(sorted((name, 1.0) for name in model.adapters))
    with_lora = bool(adapters) and _probe(settings, model, engine, adapters).reproducible
    scheduler = scheduler_class(
        engine.limits,
        model,
        chunk_tokens=settings.chunk_tokens,
        prefill_tokens=min(settings.prefill_tokens, report.step_tokens),
        step_seconds=settings.step_seconds,
        speed=report.speed,
        share_prefixes=settings.share_prefixes,
        store_bytes=settings.prefix_store_mib * 2**20,
    )
    _log_pace(settings, scheduler.counters.longest_call_seconds)
    preparer = GeneratePreparer(model, settings, reproducible=report.reproducible, reproducible_with_lora=with_lora)
    cells = settings.slots * settings.ctx_per_slot
    description = {"slots": settings.slots, "cells": cells, "reproducible": report.reproducible}
    facts = _facts(settings, model, slots=settings.slots, reproducible=report.reproducible)
    return Machinery(facts, engine, scheduler, preparer, description)


def _facts(settings: WorkerSettings, model: LlamaModel, **more: Any) -> WorkerFacts:
    """What the lease says; the fingerprints are read from the files."""
    adapters = {name: fingerprint(path.expanduser()) for name, path in settings.lora.items()}
    facts = WorkerFacts(
        model=model.name, fingerprint=fingerprint(model.path), adapters=adapters, started=time.time(), **more
    )
    logger.info("the model's fingerprint is %s", facts.fingerprint)
    return facts


def _probe(settings: WorkerSettings, model: LlamaModel, engine: LlamaEngine, adapters: Adapters) -> ProbeReport:
    report = probe(
        engine,
        model.n_vocab,
        settings.chunk_tokens,
        adapters,
        step_seconds=settings.step_seconds,
        limit_seconds=settings.probe_seconds,
    )
    vouched = "does not depend" if report.reproducible else "may depend"
    which = " with adapters" if adapters else ""
    logger.info("greedy output%s %s on who shares the batch (looked at %s)", which, vouched, report.looked_at)
    return report


def _log_pace(settings: WorkerSettings, longest_call_seconds: float) -> None:
    if longest_call_seconds > settings.step_seconds:
        logger.warning(
            "this machine is slow for this model: a call takes up to %.0f s, and steps are as short as can be; "
            "fewer slots, or smaller chunk_tokens, would shorten them",
            longest_call_seconds,
        )


@contextmanager
def _running(
    settings: WorkerSettings, machinery: Machinery[A], app: Celery, outcomes: tasks.Outcomes, parts: Parts
) -> Iterator[PoolParts]:
    """Everything behind the pool, started; stopped on the way out."""
    facts = machinery.facts
    with connect(settings) as for_events, connect(settings) as for_claims, connect(settings) as for_leases:
        # A worker restarted under its predecessor's name must not pass for the owner of the other's jobs.
        owner = f"{settings.worker_name}-{uuid.uuid4().hex[:6]}"
        worker, identity = Worker(owner, settings.worker_name, facts), Identity(owner, facts)
        publisher, runner = _connect_engine(settings, machinery, for_events, parts)
        admission = Admission(for_claims, settings, machinery.preparer, runner, publisher, _started(app), identity)
        deliveries = Deliveries()
        prefetch = Prefetch(settings.places, most_extra=settings.slots)
        app.steps["consumer"].update((prefetch_step(prefetch), GatherEvents))
        keeper = _make_keeper(settings, app, for_leases, worker, runner, deliveries, prefetch)
        description = {"model": facts.model, **machinery.description, "owner": owner}
        statistics = Statistics(description, lambda: runner.counters)
        try:
            keeper.start()  # the lease first
            publisher.start()
            runner.start()
            yield PoolParts(admission, outcomes, deliveries, prefetch, statistics, settings.drain_seconds)
        finally:  # nothing is claimed, decoded or said any more, then the lease goes
            admission.stop()
            runner.stop()
            publisher.stop(_WRITE_SECONDS)
            keeper.stop()


def _connect_engine(
    settings: WorkerSettings, machinery: Machinery[A], connection: redis.Redis, parts: Parts
) -> tuple[Publisher, Runner[A]]:
    """The engine's thread and the publisher's: each tells the other something, so they are made together."""

    def end_job(job_id: str, reason: EndReason) -> None:
        runner.send(End(job_id, reason))

    def outbox_full() -> bool:
        return publisher.full

    publisher = parts.publisher(connection, settings.ledger, end_job, settings.outbox_tokens, crash)
    runner = parts.runner(machinery.engine, machinery.scheduler, publisher.put, outbox_full, crash)
    return publisher, runner


def _make_keeper(
    settings: WorkerSettings,
    app: Celery,
    connection: redis.Redis,
    worker: Worker,
    runner: Runner[Any],
    deliveries: Deliveries,
    prefetch: Prefetch,
) -> Keeper:
    """The keeper's thread, and what it does between two signs of life."""
    keys = queue_keys(settings)
    reconciler = Reconciler(connection, settings, worker.owner, partial(publish, app), keys)
    urgent = UrgentWatch(connection, keys, lambda: runner.counters, prefetch.fetch_one_more)
    return Keeper(connection, settings, worker, runner, reconciler, urgent, deliveries.in_work, crash)


def _serve(settings: WorkerSettings, app: Celery, parts: PoolParts) -> int:
    # Celery makes the pool itself, so what the pool needs is bound to the class.
    pool = type("EnginePool", (EnginePool,), {"parts": parts, "__module__": EnginePool.__module__})
    worker = app.Worker(
        pool=pool,
        concurrency=settings.places,
        hostname=f"celery-llama@{settings.worker_name}",
        loglevel=settings.log_level.upper(),
        quiet=True,
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def queue_keys(settings: WorkerSettings) -> list[str]:
    """The Redis lists that are the queue: kombu appends the priority to the name of all but the first."""
    return [settings.namespace if step == 0 else f"{settings.namespace}\x06\x16{step}" for step in PRIORITIES]


def _started(app: Celery) -> Callable[[str], TaskState]:
    """Celery's state STARTED of a job; the tracer, which stores it in stock Celery, runs only at the end of a job."""
    meta = {"pid": os.getpid(), "hostname": socket.gethostname()}
    return lambda job_id: app.backend.started(job_id, meta)


def crash(error: BaseException) -> None:
    """End the process at once, from whatever thread: a worker with a dead part must not go on taking jobs."""
    logger.critical("the worker cannot go on: %s", error)
    logging.shutdown()
    os._exit(EXIT_CRASHED)
