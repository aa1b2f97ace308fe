"""Every Redis key and channel of the project, as functions of the namespace and the job id. No I/O, any thread."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from celery_llama.protocol.errors import InvalidJob

GENERATE_TASK = "celery_llama.generate"
EMBED_TASK = "celery_llama.embed"
#: Remote-control command that makes a worker look at once at a job that somebody wants cancelled.
CANCEL_COMMAND = "celery_llama_cancel"

#: What a job id may look like: it becomes part of a key, so nothing that a glob, a hash tag or a shell would interpret.
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_job_id(job_id: str) -> str:
    """Return `job_id` if it may become part of a Redis key; raises InvalidJob."""
    if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
        raise InvalidJob(
            "a job id has 1 to 128 letters, digits, dots, dashes or underscores and begins with a letter or digit"
        )
    return job_id


@dataclass(frozen=True, slots=True)
class Names:
    """The key space of one namespace. The braces around a job's id keep its keys in one cluster slot."""

    namespace: str

    def job(self, job_id: str) -> str:
        """Hash: the job's ledger entry."""
        return f"{self.namespace}:{{{check_job_id(job_id)}}}"

    def events(self, job_id: str) -> str:
        """Stream and pub/sub channel: the job's events."""
        return f"{self.namespace}:{{{check_job_id(job_id)}}}:events"

    def ended(self, job_id: str) -> str:
        """Pub/sub channel: the job's terminal event alone, for who waits for nothing else."""
        return f"{self.namespace}:{{{check_job_id(job_id)}}}:ended"

    @property
    def open(self) -> str:
        """Sorted set: jobs that need a worker, scored by when somebody last vouched for them (Unix seconds).

        Those that have not ended, and those that have, until a worker has told Celery.
        """
        return f"{self.namespace}:open"

    @property
    def expiring(self) -> str:
        """Sorted set: jobs that must have begun by the time that is their score (Unix seconds)."""
        return f"{self.namespace}:expiring"

    @property
    def failed(self) -> str:
        """Sorted set: failed jobs that may be replayed, scored by when they failed (Unix seconds)."""
        return f"{self.namespace}:failed"

    @property
    def lease_prefix(self) -> str:
        """What a worker's lease key begins with; the worker's name follows."""
        return f"{self.namespace}:worker:"

    def lease(self, owner: str) -> str:
        """String with a TTL: this worker is alive, and what it says of itself (`WorkerFacts`)."""
        return f"{self.lease_prefix}{owner}"

    @property
    def workers(self) -> str:
        """Sorted set: the workers, scored by when their leases end (Unix seconds). Alive is who has a lease."""
        return f"{self.namespace}:workers"

    def worker_name(self, name: str) -> str:
        """String with a TTL: which worker has this name; there is one of a name."""
        return f"{self.namespace}:name:{name}"

    @property
    def reconciler(self) -> str:
        """String with a TTL: which worker reconciles."""
        return f"{self.namespace}:reconciler"

    def idempotency(self, key: str) -> str:
        """Hash: the job that was submitted under this idempotency key. The key is digested: it is the user's text."""
        return f"{self.namespace}:idempotency:{hashlib.sha256(key.encode()).hexdigest()}"

    @property
    def unacked(self) -> str:
        """Hash, kombu's: messages that were delivered and are not acknowledged.

        Ours alone, not kombu's shared default: with a short visibility timeout another Celery application on the same
        database would otherwise have its long tasks delivered twice.
        """
        return f"{self.namespace}:unacked"

    @property
    def unacked_index(self) -> str:
        """Sorted set, kombu's: delivery tags scored by when they were last known to be in work (Unix seconds)."""
        return f"{self.namespace}:unacked_index"

    @property
    def unacked_mutex(self) -> str:
        """String with a TTL, kombu's: some worker is restoring lapsed messages."""
        return f"{self.namespace}:unacked_mutex"
