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
├── MissingExtra            an optional dependency is not installed
└── GenerationFailed        what Celery stores for a job that failed

An error's `args` are what its class was called with, in JSON types: pickle, copy and Celery make it anew from them, the
last from nothing else. So a class with arguments of its own says them in `__str__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes

    def __str__(self) -> str:
        return f"the job has {self.size_bytes} bytes, the limit is {self.limit_bytes} (CELERY_LLAMA_MAX_JOB_BYTES)"


class IdempotencyConflict(CeleryLlamaError):
    """The idempotency key was used for a job with another body."""

    code = "idempotency_conflict"


class JobNotFound(CeleryLlamaError):
    """There is no job of this id, or its data has expired."""

    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"there is no job {self.job_id}, or its data has expired"


class StreamExpired(CeleryLlamaError):
    """The job's events have expired; its result may still be there."""

    code = "stream_expired"

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"the events of job {self.job_id} have expired; ask for its result"


class JobFailed(CeleryLlamaError):
    """The job failed. `.failure_code` says why, `.result` has whatever text it produced.

    Where the error went through Celery, which carries its arguments alone, the result is without text.
    """

    code = "job_failed"

    def __init__(self, job_id: str, failure_code: str, message: str, result: Result | None = None) -> None:
        super().__init__(job_id, failure_code, message)
        self.job_id, self.failure_code, self.message = job_id, failure_code, message
        error = {"code": failure_code, "message": message}
        self.result = result or _result(id=job_id, status="failed", error=error)

    def __str__(self) -> str:
        return f"job {self.job_id} failed: {self.message} ({self.failure_code})"


class ResultTimeout(CeleryLlamaError, TimeoutError):
    """The job did not end in the time that the caller allowed; it goes on."""

    code = "result_timeout"

    def __init__(self, job_id: str, timeout_seconds: float) -> None:
        Exception.__init__(self, job_id, timeout_seconds)  # OSError's would take them for errno and its text
        self.job_id, self.timeout_seconds = job_id, timeout_seconds

    def __str__(self) -> str:
        return f"job {self.job_id} did not end within {self.timeout_seconds:g} s; it goes on"


class ServerUnreachable(CeleryLlamaError):
    """The Redis server cannot be reached."""

    code = "server_unreachable"

    def __init__(self, url: str, cause: object) -> None:
        super().__init__(url, str(cause))
        self.url, self.reason = url, str(cause)

    def __str__(self) -> str:
        return f"cannot reach Redis at {self.url}: {self.reason}"


class UnreadableData(CeleryLlamaError):
    """What Redis holds for the job is not what this version writes: a newer version's, or somebody else's."""

    code = "unreadable_data"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"cannot read {self.what}: it was written by a newer version or by something else"


class OutputMismatch(CeleryLlamaError):
    """The output satisfies the JSON schema but not the response model's own checks. `.result` has the text.

    Where the error went through Celery, which carries its arguments alone, the result is without it.
    """

    code = "output_mismatch"

    def __init__(self, job_id: str, model: str, result: Result | None = None) -> None:
        super().__init__(job_id, model)
        self.job_id, self.model = job_id, model
        self.result = result or _result(id=job_id, status="completed")

    def __str__(self) -> str:
        return f"the output of job {self.job_id} does not satisfy {self.model}"


class MissingExtra(CeleryLlamaError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package, self.extra = package, extra

    def __str__(self) -> str:
        return f"{self.package} is not installed: pip install 'celery-llama[{self.extra}]'"


class GenerationFailed(CeleryLlamaError):
    """What Celery stores for a job that failed: what `AsyncResult.get()` raises, with the error's code and message."""

    code = "job_failed"

    def __init__(self, failure_code: str, message: str) -> None:
        super().__init__(failure_code, message)
        self.failure_code, self.message = failure_code, message

    def __str__(self) -> str:
        return f"{self.message} ({self.failure_code})"


def _result(**fields: Any) -> Result:
    """What is left of a result. Pydantic is imported here: the package imports the errors, and is to stay light."""
    from celery_llama.protocol.results import Result

    return Result.model_validate(fields)
