"""Errors that this project raises on purpose: one line for the person, a code for the program.

CeleryLlamaError
├── InvalidJob              refused before anything was stored
│   └── JobTooLarge
├── IdempotencyConflict     same key, other body
├── JobNotFound             never submitted, or its data has expired
├── StreamExpired           the events are gone, the result may still be there
├── JobFailed               the job ran and failed; carries the result
├── ResultTimeout           not finished in the time the caller allowed
├── ServerUnreachable       Redis cannot be reached
├── UnreadableData          Redis holds something for the job that this version cannot read
├── OutputMismatch          the output has the schema's form and yet the response model refuses it
└── MissingExtra            an optional dependency is not installed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from celery_llama.protocol.results import Result


class CeleryLlamaError(Exception):
    """Base of every error that this project raises on purpose."""

    #: For programs; appears in results, events and `--json` output.
    code: ClassVar[str] = "internal_error"


class InvalidJob(CeleryLlamaError):
    """The job is not valid; nothing was stored."""

    code = "invalid_request"


class JobTooLarge(InvalidJob):
    """The job's body exceeds the size limit."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"the job has {size_bytes} bytes, the limit is {limit_bytes} (CELERY_LLAMA_MAX_JOB_BYTES)")


class IdempotencyConflict(CeleryLlamaError):
    """The idempotency key was used for a job with another body."""

    code = "idempotency_conflict"


class JobNotFound(CeleryLlamaError):
    """There is no job of this id, or its data has expired."""

    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id}, or its data has expired")


class StreamExpired(CeleryLlamaError):
    """The job's events have expired; its result may still be there."""

    code = "stream_expired"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the events of job {job_id} have expired; ask for its result")


class JobFailed(CeleryLlamaError):
    """The job failed. `.result` has whatever text it produced, `.failure_code` says why."""

    code = "job_failed"

    def __init__(self, result: Result) -> None:
        error = result.error
        self.result = result
        self.failure_code = error.code if error else "internal_error"
        super().__init__(
            f"job {result.id} failed: {error.message if error else 'no reason given'} ({self.failure_code})"
        )


class ResultTimeout(CeleryLlamaError, TimeoutError):
    """The job did not end in the time that the caller allowed; it goes on."""

    code = "result_timeout"

    def __init__(self, job_id: str, timeout_seconds: float) -> None:
        super().__init__(f"job {job_id} did not end within {timeout_seconds:g} s; it goes on")


class ServerUnreachable(CeleryLlamaError):
    """The Redis server cannot be reached."""

    code = "server_unreachable"

    def __init__(self, url: str, cause: object) -> None:
        super().__init__(f"cannot reach Redis at {url}: {cause}")


class UnreadableData(CeleryLlamaError):
    """What Redis holds for the job is not what this version writes: a newer version's, or somebody else's."""

    code = "unreadable_data"

    def __init__(self, what: str) -> None:
        super().__init__(f"cannot read {what}: it was written by a newer version or by something else")


class OutputMismatch(CeleryLlamaError):
    """The output satisfies the JSON schema but not the response model's own checks. `.result` has the text."""

    code = "output_mismatch"

    def __init__(self, result: Result, model: str) -> None:
        self.result = result
        super().__init__(f"the output of job {result.id} does not satisfy {model}")


class MissingExtra(CeleryLlamaError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'celery-llama[{extra}]'")


class GenerationFailed(CeleryLlamaError):
    """What Celery stores for a job that failed; its arguments are the error's code and message."""

    code = "job_failed"

    def __init__(self, failure_code: str, message: str) -> None:
        self.failure_code = failure_code
        self.message = message
        super().__init__(failure_code, message)

    def __str__(self) -> str:
        return f"{self.message} ({self.failure_code})"
