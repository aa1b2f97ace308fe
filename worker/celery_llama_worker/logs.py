"""How the worker logs. Main thread, at start."""

from __future__ import annotations

import logging
import warnings

from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning
from celery.signals import setup_logging

from celery_llama_worker.settings import WorkerSettings

_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def configure_logging(settings: WorkerSettings) -> None:
    """Log to stderr, one line an event; Celery is kept from setting up its own."""
    setup_logging.connect(_keep_our_logging, weak=False)
    logging.basicConfig(format=_FORMAT, level=settings.log_level.upper(), force=True)
    # One line a job is enough, and it is ours: Celery's would show the task's value.
    logging.getLogger("celery.app.trace").setLevel(logging.ERROR)
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.getLogger("celery.pool").setLevel(logging.INFO)  # its debug lines have the arguments, which are prompts
    # While Redis is away, every thread that waits to store a result would say so, with a traceback, again and again.
    logging.getLogger("celery.backends.base").setLevel(logging.ERROR)
    # Celery warns superusers because of pickle, which is not accepted here; a container's user is a superuser often.
    warnings.simplefilter("ignore", SecurityWarning)
    # With every reconnect Celery warns that a default will change; it is set in celery_app.py.
    warnings.simplefilter("ignore", CPendingDeprecationWarning)


def _keep_our_logging(**_: object) -> None:
    """Receiving the signal is what keeps Celery from configuring logging."""
