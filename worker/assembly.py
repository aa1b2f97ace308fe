"""The composition root: settings -> server -> model -> engine -> threads -> pool -> Celery. The only place that builds.

Leaving a block closes what it opened, in reverse order; that is how the worker stops. Runs on the main thread.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from celery import Celery

from producer.celery_app import PRIORITIES, make_app, publish
from producer.connection import connect
from producer.ledger import TaskState
from worker import backend, tasks, transport
from worker.admission import Admission, Identity, Preparer
from worker.backstage import Backstage
from worker.delivery import Deliveries
from worker.engine.embed_preparer import EmbedPreparer
from worker.engine.embedder import LlamaEmbedder
from worker.engine.embedding import EmbedScheduler
from worker.engine.llama import LlamaEngine, LlamaModel
from worker.engine.outputs import EndReason
from worker.engine.plan import Adapters, Engine
from worker.engine.preparer import JobPreparer
from worker.engine.probe import probe
from worker.engine.scheduler import Scheduler
from worker.events import GatherEvents
from worker.guests import Guests, consumer_step
from worker.keeper import Keeper
from worker.logs import configure_logging
from worker.models import load_model
from worker.pool import EnginePool
from worker.publisher import Publisher
from worker.reconciler import Reconciler
from worker.runner import End, Runner
from worker.runner import Scheduler as AnyScheduler
from worker.scout import Scout
from worker.server import wait_for_server
from worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

#: How long the engine thread may wait for the interpreter's lock each time it comes back from llama.cpp.
#: With Python's 5 ms, another thread that was busy all the time made a step 23 ms longer; with 0.05 to 0.5 ms, 2 to 6.
_SWITCH_SECONDS = 0.0002

#: The process has to go because a part of it failed; its jobs go to others when the lease lapses.
EXIT_CRASHED = 70


def run_worker(settings: WorkerSettings) -> int:
    """Work until told to stop; returns the exit code. Raises CeleryLlamaError if it cannot begin."""
    configure_logging(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)
    wait_for_server(settings)
    with load_model(settings) as model, _machinery(settings, model) as machinery:
        transport.install()
        app, outcomes = make_app(settings), tasks.Outcomes()
        backend.install(app)
        tasks.register(app, outcomes)
        tasks.register_cancel_command()
        with _running(settings, machinery, app, outcomes) as backstage:
            return _serve(settings, app, backstage)


@dataclass(frozen=True, slots=True)
class Machinery:
    """What a model needs to be of use: to generate text, or to embed texts."""

    model_name: str
    engine: Engine
    scheduler: AnyScheduler
    preparer: Preparer
    #: For Flower's Pool tab.
    description: dict[str, Any]


@contextmanager
def _machinery(settings: WorkerSettings, model: LlamaModel) -> Iterator[Machinery]:
    """Build what the model's file asks for."""
    if model.pooling is None:
        with LlamaEngine(model, settings) as engine:
            yield _generating(settings, model, engine)
    else:
        with LlamaEmbedder(model, settings) as embedder:
            limits = embedder.limits
            logger.info("%s: embeddings of %d values (%s)", model.name, model.n_embed, model.pooling)
            preparer = EmbedPreparer(model, settings, limits.cells_per_slot)
            description = {"slots": limits.slots, "embedding-values": model.n_embed}
            yield Machinery(model.name, embedder, EmbedScheduler(limits), preparer, description)


def _generating(settings: WorkerSettings, model: LlamaModel, engine: LlamaEngine) -> Machinery:
    """Find out whether output depends on who shares the batch; results say so."""

    def vouch(adapters: Adapters) -> bool:
        report = probe(engine, model.n_vocab, settings.chunk_tokens, adapters)
        # The probe is short; in a unified memory, long texts differ where short ones do not.
        reproducible = report.reproducible and settings.memory == "partitioned"
        vouched = "does not depend" if reproducible else "may depend"
        which = " with adapters" if adapters else ""
        logger.info("greedy output%s %s on who shares the batch (probed in %.1f s)", which, vouched, report.seconds)
        return reproducible

    logger.info("%s: %d slots of %d cells", model.name, settings.slots, settings.ctx_per_slot)
    reproducible = vouch(())
    # Adapters are float matrices as a rule, and those are computed differently in company.
    with_lora = bool(model.adapters) and vouch(tuple(sorted((name, 1.0) for name in model.adapters)))
    scheduler = Scheduler(
        engine.limits,
        model,
        chunk_tokens=settings.chunk_tokens,
        prefill_tokens=settings.prefill_tokens,
        share_prefixes=settings.share_prefixes,
        store_bytes=settings.prefix_store_mib * 2**20,
    )
    preparer = JobPreparer(model, settings, reproducible=reproducible, reproducible_with_lora=with_lora)
    cells = settings.slots * settings.ctx_per_slot
    description = {"slots": settings.slots, "cells": cells, "reproducible": reproducible}
    return Machinery(model.name, engine, scheduler, preparer, description)


@contextmanager
def _running(
    settings: WorkerSettings, machinery: Machinery, app: Celery, outcomes: tasks.Outcomes
) -> Iterator[Backstage]:
    """Everything behind the pool, started; stopped on the way out."""
    with connect(settings) as for_events, connect(settings) as for_claims, connect(settings) as for_leases:
        # A worker restarted under its predecessor's name must not pass for the owner of the other's jobs.
        identity = Identity(f"{settings.worker_name}-{uuid.uuid4().hex[:6]}", machinery.model_name)
        publisher, runner = _connect_engine(settings, machinery, for_events)
        admission = Admission(for_claims, settings, machinery.preparer, runner, publisher, _started(app), identity)
        deliveries = Deliveries()
        guests = Guests(settings.places, most=settings.slots)
        app.steps["consumer"].update((consumer_step(guests), GatherEvents))
        keeper = _make_keeper(settings, app, for_leases, identity.owner, runner, deliveries, guests)
        description = {"model": machinery.model_name, **machinery.description, "owner": identity.owner}
        backstage = Backstage(
            admission=admission,
            runner=runner,
            publisher=publisher,
            keeper=keeper,
            outcomes=outcomes,
            deliveries=deliveries,
            guests=guests,
            drain_seconds=settings.drain_seconds,
            description=description,
        )
        try:
            backstage.start()
            yield backstage
        finally:
            backstage.stop()


def _connect_engine(
    settings: WorkerSettings, machinery: Machinery, connection: redis.Redis
) -> tuple[Publisher, Runner]:
    """The engine's thread and the publisher's: each tells the other something, so they are made together."""

    def end_job(job_id: str, reason: EndReason) -> None:
        runner.send(End(job_id, reason))

    def outbox_full() -> bool:
        return publisher.full

    publisher = Publisher(connection, settings.ledger, end_job, settings.outbox_tokens, crash)
    runner = Runner(machinery.engine, machinery.scheduler, publisher.put, outbox_full, crash)
    return publisher, runner


def _make_keeper(
    settings: WorkerSettings,
    app: Celery,
    connection: redis.Redis,
    owner: str,
    runner: Runner,
    deliveries: Deliveries,
    guests: Guests,
) -> Keeper:
    """The keeper's thread, and what it does between two signs of life."""
    keys = queue_keys(settings)
    reconciler = Reconciler(connection, settings, owner, partial(publish, app), keys)
    scout = Scout(connection, keys, lambda: runner.counters, guests.invite)
    return Keeper(connection, settings, owner, runner, reconciler, scout, deliveries.in_work, crash)


def _serve(settings: WorkerSettings, app: Celery, backstage: Backstage) -> int:
    # Celery makes the pool itself, so what the pool needs is bound to the class.
    pool = type("EnginePool", (EnginePool,), {"backstage": backstage, "__module__": EnginePool.__module__})
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
