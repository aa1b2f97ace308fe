"""Makes an embedding job's attempt: each text's tokens. Runs on the admit thread."""

from __future__ import annotations

from collections.abc import Mapping

from celery_llama.protocol.delivered import DeliveredChoice
from celery_llama.protocol.embedding import EmbedJob
from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.kinds import Job
from celery_llama_worker.engine.embedding.scheduler import EmbedAttempt
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.prepared import PreparedJob
from celery_llama_worker.errors import TextTooLong
from celery_llama_worker.settings import WorkerSettings


class EmbedPreparer:
    """Prepares embedding jobs for one model; `longest` is the most tokens of a text."""

    def __init__(self, model: LlamaModel, settings: WorkerSettings, longest: int) -> None:
        self._model = model
        self._max_seconds = settings.max_job_seconds
        self._longest = longest

    def piece(self, token: int) -> bytes:
        """A token's bytes."""
        return self._model.piece(token)

    def prepare(
        self, job_id: str, number: int, job: Job, delivered: Mapping[int, DeliveredChoice], limit_seconds: float | None
    ) -> PreparedJob[EmbedAttempt]:
        """Make attempt `number` of the job, which ends after `limit_seconds` at the latest. Raises InvalidJob."""
        if not isinstance(job, EmbedJob):
            raise InvalidJob("this worker's model makes embeddings and generates no text; send an embedding job")
        if job.dimensions is not None and job.dimensions > self._model.n_embed:
            raise InvalidJob(f"dimensions: this model's vectors have {self._model.n_embed} values")
        texts = [self._tokens(text, index, job.truncate) for index, text in enumerate(job.input)]
        limits = [limit for limit in (job.timeout, limit_seconds, self._max_seconds) if limit]
        attempt = EmbedAttempt(job_id, number, job.priority, min(limits), texts, job.normalize, job.dimensions)
        return PreparedJob(attempt, sum(map(len, texts)))

    def _tokens(self, text: str, index: int, truncate: str) -> list[int]:
        """The text's tokens between those that the model wants around every text, which stay when it is cut."""
        whole = self._model.tokenize(text, add_special=True, parse_special=False)
        if not whole:
            raise InvalidJob(f"input.{index}: the text has no tokens")
        if len(whole) <= self._longest:
            return whole
        if truncate == "refuse":
            raise TextTooLong(index, len(whole), self._longest)
        plain = self._model.tokenize(text, add_special=False, parse_special=False)
        around = len(whole) - len(plain)
        before = next((at for at in range(around) if whole[at : at + len(plain)] == plain), around)
        kept = max(0, self._longest - around)
        middle = plain[:kept] if truncate == "right" else plain[len(plain) - kept :]
        return [*whole[:before], *middle, *whole[before + len(plain) :]]
