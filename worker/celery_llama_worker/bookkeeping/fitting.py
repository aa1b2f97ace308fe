"""Whether a worker may go on with what another has begun: with the same model and adapters, or not at all.

Runs on the admit thread. With another model the text would change its author in the middle, and with another vocabulary
the tokens that were said would mean nothing.
"""

from __future__ import annotations

import redis

from celery_llama.ledger.queries import ask, living, worker_owners
from celery_llama.protocol.delivered import Delivered
from celery_llama.protocol.jobs import GenerateJob
from celery_llama.protocol.kinds import Job
from celery_llama.protocol.names import Names
from celery_llama.protocol.workers import WorkerFacts
from celery_llama_worker.errors import OtherModel


def adapters_of(job: Job) -> list[str]:
    """The LoRA adapters that the job's text depends on."""
    return [adapter.name for adapter in job.lora if adapter.scale] if isinstance(job, GenerateJob) else []


def may_go_on_here(connection: redis.Redis, names: Names, job: Job, so_far: Delivered, facts: WorkerFacts) -> bool:
    """Whether the worker of these facts may; False if there is another that may.

    Where nothing was said, or nobody knows with what, any may. Raises OtherModel if no worker fits; redis.RedisError.
    """
    said = any(choice.tokens or choice.text for choice in so_far.choices.values())
    adapters = adapters_of(job)
    if not said or so_far.fingerprint in {"", facts.fingerprint_with(adapters)}:
        return True
    owners = ask(connection, worker_owners(names))
    others = ask(connection, living(names, owners)).values() if owners else ()
    if not any(other.fingerprint_with(adapters) == so_far.fingerprint for other in others):
        raise OtherModel("the job was begun with another model or other adapters, and no worker with those is alive")
    return False
