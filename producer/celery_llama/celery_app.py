"""All Celery configuration, in one place, and the messages to workers. Any thread.

`celery -A celery_llama.celery_app flower` finds `app` here, built when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from celery_llama.protocol.kinds import describe_job, task_of
from celery_llama.protocol.names import CANCEL_COMMAND
from celery_llama.settings import Settings

#: One Redis list per priority; on Redis, 0 is served first.
PRIORITIES = list(range(10))


def make_app(settings: Settings, *, reads_results: bool = True) -> Celery:
    """Build the Celery application that producers, workers and Flower share.

    One that does not read results keeps no subscription for every task it sends; our client has the ledger for that.
    """
    names, url = settings.names, _celery_url(settings.redis_url)
    backend = url if reads_results else "disabled://"
    app = Celery("celery-llama", broker=url, backend=backend, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        event_serializer="json",
        task_default_queue=settings.namespace,
        task_create_missing_queues=True,
        task_acks_late=True,
        task_track_started=True,
        task_send_sent_event=True,
        result_expires=settings.result_ttl_seconds,
        result_extended=False,
        result_backend_thread_safe=True,
        redis_socket_timeout=settings.redis_timeout_seconds,
        redis_socket_keepalive=True,
        broker_connection_retry_on_startup=True,
        # However long the server is away: what runs here goes on meanwhile.
        broker_connection_max_retries=None,
        # One message a slot: what a worker holds, it runs.
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        # The worker's pool adopts a redelivered job that still runs there, so nothing needs to be thrown away.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_transport_options={
            "visibility_timeout": settings.lease_seconds,
            "unacked_key": names.unacked,
            "unacked_index_key": names.unacked_index,
            "unacked_mutex_key": names.unacked_mutex,
            # A worker killed during a sweep must not block the others' sweeps for kombu's default of five minutes.
            "unacked_mutex_expire": max(10, settings.sweep_seconds * 3),
            "unacked_restore_interval": settings.sweep_seconds,
            "unacked_restore_throttle": 1,
            "priority_steps": PRIORITIES,
            "queue_order_strategy": "priority",
            "socket_timeout": settings.redis_timeout_seconds,
            "socket_keepalive": True,
        },
    )
    return app


def _celery_url(url: str) -> str:
    """The same server in Celery's spelling."""
    if url.startswith("unix://"):
        return url.replace("unix://", "redis+socket://", 1).replace("db=", "virtual_host=")
    if url.startswith("rediss://") and "ssl_cert_reqs=" not in url:
        # redis-py checks certificates unless told otherwise; kombu does not, and Celery's backend wants to be told.
        return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"
    return url


def publish(app: Celery, job_id: str, body: Mapping[str, Any], priority: int) -> None:
    """Send the task message of a job that is in the ledger; raises redis.ConnectionError."""
    with _one_kind_of_error():
        app.send_task(
            task_of(body),
            kwargs={"job": body},
            task_id=job_id,
            priority=priority,
            queue=app.conf.task_default_queue,
            # Flower and the logs show these in place of the arguments, which are the user's text.
            argsrepr="()",
            kwargsrepr=describe_job(body),
        )


def tell_workers_to_cancel(app: Celery, job_id: str) -> None:
    """Make the worker that runs the job look at its cancel flag at once; raises redis.ConnectionError."""
    with _one_kind_of_error():
        app.control.broadcast(CANCEL_COMMAND, arguments={"job_id": job_id})


@contextmanager
def _one_kind_of_error() -> Iterator[None]:
    """Raise for a server that is away what the rest of our code, which talks to it directly, knows."""
    try:
        yield
    except OperationalError as error:
        raise redis.ConnectionError(str(error)) from error


def __getattr__(name: str) -> Any:
    """Build `app` from the environment when Celery's command line asks this module for it."""
    if name == "app":
        globals()["app"] = app = make_app(Settings())
        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
