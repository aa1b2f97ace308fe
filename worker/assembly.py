"""The composition root: settings -> server -> model -> engine -> threads -> pool -> Celery. The only place that builds.

Leaving a block closes what it opened, in reverse order; that is how the worker stops. Runs on the main thread.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from typing import Any

import redis
from celery import Celery
from celery.signals import setup_logging
from celery.worker import state as celery_state

from producer.celery_app import PRIORITIES, make_app, publish
from producer.connection import connect, hide_password
from producer.errors import ServerUnreachable
from worker import tasks, transport
from worker.admission import Admission
from worker.backstage import Backstage
from worker.delivery import Delivery
from worker.engine.llama import LlamaEngine, LlamaModel
from worker.engine.preparer import JobPreparer
from worker.engine.probe import probe
from worker.engine.scheduler import Scheduler
from worker.keeper import Keeper
from worker.models import resolve_model
from worker.pool import EnginePool
from worker.publisher import Publisher
from worker.reconciler import Reconciler
from worker.runner import End, Runner
from worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

#: The process has to go because a part of it failed; its jobs go to others when the lease lapses.
EXIT_CRASHED = 70
_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def run_worker(settings: WorkerSettings) -> int:
    """Work until told to stop; returns the exit code. Raises CeleryLlamaError if it cannot begin."""
    configure_logging(settings)
    wait_for_server(settings)
    with (
        LlamaModel(resolve_model(settings), gpu_layers=settings.gpu_layers, name=settings.model_name) as model,
        LlamaEngine(model, settings) as engine,
    ):
        report = probe(engine)
        logger.info("%s, %d slots of %d cells; output %s", model.name, settings.slots, settings.ctx_per_slot, report)
        transport.install()
        app = make_app(settings)
        outcomes = tasks.Outcomes()
        tasks.register(app, outcomes)
        tasks.register_cancel_command()
        with _backstage(settings, model, engine, app, outcomes, report.reproducible) as backstage:
            return _serve(settings, app, backstage)


def configure_logging(settings: WorkerSettings) -> None:
    """Log to stderr, one line an event; Celery is kept from setting up its own."""
    setup_logging.connect(lambda **_: None, weak=False)
    logging.basicConfig(format=_LOG_FORMAT, level=settings.log_level.upper(), force=True)
    # One line a job is enough, and it is ours: Celery's would show the task's value.
    logging.getLogger("celery.app.trace").setLevel(logging.ERROR)
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


def wait_for_server(settings: WorkerSettings) -> None:
    """Return when Redis answers; raises ServerUnreachable when `connect_seconds` are over."""
    deadline = time.monotonic() + settings.connect_seconds
    said = False
    with closing(redis.Redis.from_url(settings.redis_url, socket_connect_timeout=2, socket_timeout=5)) as connection:
        while True:
            try:
                connection.ping()
                return
            except redis.AuthenticationError as error:
                raise ServerUnreachable(hide_password(settings.redis_url), error) from error
            except redis.RedisError as error:
                if time.monotonic() >= deadline:
                    raise ServerUnreachable(hide_password(settings.redis_url), error) from error
                if not said:
                    logger.warning("waiting for Redis at %s: %s", hide_password(settings.redis_url), error)
                said = True
                time.sleep(0.5)


@contextmanager
def _backstage(
    settings: WorkerSettings,
    model: LlamaModel,
    engine: LlamaEngine,
    app: Celery,
    outcomes: tasks.Outcomes,
    reproducible: bool,
) -> Iterator[Backstage]:
    owner = f"{settings.worker_name}-{uuid.uuid4().hex[:6]}"
    ledger = settings.ledger
    scheduler = Scheduler(
        engine.limits, model, chunk_tokens=settings.chunk_tokens, prefill_tokens=settings.prefill_tokens
    )
    connections = [connect(settings) for _ in range(3)]
    for_events, for_claims, for_leases = connections

    publisher: Publisher = Publisher(
        for_events,
        ledger,
        lambda job_id, reason: runner.send(End(job_id, reason)),
        settings.outbox_tokens,
        crash,
    )
    runner = Runner(engine, scheduler, publisher.put, lambda: publisher.full, crash)
    preparer = JobPreparer(model, settings.ctx_per_slot)
    admission = Admission(
        for_claims,
        settings,
        preparer,
        runner,
        publisher,
        lambda delivery: mark_started(app, delivery),
        owner=owner,
        model_name=model.name,
        reproducible=reproducible,
    )
    reconciler = Reconciler(
        for_leases,
        ledger,
        lambda job_id, body, priority: publish(app, job_id, body, priority),
        queue_keys=queue_keys(settings),
        lease_seconds=settings.lease_seconds,
    )
    keeper = Keeper(
        for_leases,
        ledger,
        runner,
        reconciler,
        in_work,
        lambda silent_seconds: crash(TimeoutError(f"the engine has made no progress for {silent_seconds:.0f} s")),
        owner=owner,
        lease_seconds=settings.lease_seconds,
        stall_seconds=settings.stall_seconds,
    )
    backstage = Backstage(
        admission=admission,
        runner=runner,
        publisher=publisher,
        keeper=keeper,
        outcomes=outcomes,
        drain_seconds=settings.drain_seconds,
        description={
            "model": model.name,
            "slots": settings.slots,
            "cells": settings.slots * settings.ctx_per_slot,
            "reproducible": reproducible,
            "owner": owner,
        },
    )
    try:
        backstage.start()
        yield backstage
    finally:
        backstage.stop()
        for connection in connections:
            connection.close()


def _serve(settings: WorkerSettings, app: Celery, backstage: Backstage) -> int:
    # Celery makes the pool itself, so what the pool needs is bound to the class.
    pool = type("EnginePool", (EnginePool,), {"backstage": backstage, "__module__": EnginePool.__module__})
    worker = app.Worker(
        pool=pool,
        # A few more messages than slots, claimed and prepared, so that a slot that falls free is filled in the next step.
        concurrency=settings.slots + settings.lookahead,
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


def in_work() -> tuple[Collection[str], Collection[str]]:
    """Job ids and delivery tags of every message that this process holds."""
    requests = list(celery_state.requests.values())
    return [request.id for request in requests], [request.delivery_tag for request in requests]


def mark_started(app: Celery, delivery: Delivery) -> None:
    """Store Celery's state STARTED; the tracer, which does it in stock Celery, runs only at the end of a job."""
    meta: dict[str, Any] = {"pid": os.getpid(), "hostname": socket.gethostname()}
    app.backend.store_result(delivery.job_id, meta, "STARTED")


def crash(error: BaseException) -> None:
    """End the process at once, from whatever thread: a worker with a dead part must not go on taking jobs."""
    logger.critical("the worker cannot go on: %s", error)
    logging.shutdown()
    os._exit(EXIT_CRASHED)
