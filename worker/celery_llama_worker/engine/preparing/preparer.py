"""Makes a job's attempt: prompts, samplers and text streams of all its choices. Runs on the admit thread."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from celery_llama.protocol.delivered import DeliveredChoice
from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import MAX_SEED, GenerateJob, LoraAdapter
from celery_llama.protocol.kinds import Job
from celery_llama_worker.engine.detokenizer import Detokenizer
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.llama.sampling import LlamaSampler
from celery_llama_worker.engine.plan import Adapters
from celery_llama_worker.engine.prepared import PreparedJob
from celery_llama_worker.engine.preparing.prompt import PreparedPrompt, PromptBuilder
from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence
from celery_llama_worker.errors import OtherModel
from celery_llama_worker.settings import WorkerSettings

#: About 100 bytes each: Redis takes no value of more than 512 MB.
_MOST_LOGPROBS = 2_000_000


class GeneratePreparer:
    """Prepares jobs for one model and one worker's settings."""

    def __init__(
        self, model: LlamaModel, settings: WorkerSettings, *, reproducible: bool, reproducible_with_lora: bool = False
    ) -> None:
        """`reproducible`: whether output is a function of the job alone although others share the batch."""
        self._model = model
        self._slots = settings.slots
        self._max_seconds = settings.max_job_seconds
        self._unified = settings.memory == "unified"
        self._exact_resume = settings.exact_resume
        self.reproducible = reproducible
        self._reproducible_with_lora = reproducible_with_lora
        # A template repeats no message, but writes around each, and the shortest take more room there than in a body.
        most_characters = 4 * settings.max_job_bytes
        self._prompts = PromptBuilder(
            model, settings.cells_per_job, shared_cells=self._unified, most_characters=most_characters
        )

    def piece(self, token: int) -> bytes:
        """A token's bytes."""
        return self._model.piece(token)

    def prepare(
        self,
        job_id: str,
        number: int,
        job: Job,
        delivered: Mapping[int, DeliveredChoice],
        limit_seconds: float | None,
    ) -> PreparedJob[Attempt]:
        """Make attempt `number` of the job, which goes on after what was `delivered` of each choice.

        Ends after `limit_seconds` at the latest. Raises InvalidJob, BadGrammar, EngineFault.
        """
        if not isinstance(job, GenerateJob):
            raise InvalidJob("this worker's model generates text and makes no embeddings; it needs an embedding model")
        adapters = self._adapters(job.lora)
        prepared = self._prompts.prepare(job)
        logprobs = job.n * prepared.max_tokens * (1 + (job.top_logprobs or 0)) if job.logprobs else 0
        if logprobs > _MOST_LOGPROBS:
            raise InvalidJob(
                f"the result could have {logprobs:,} log-probabilities, at most {_MOST_LOGPROBS:,} are allowed"
            )
        needed = job.n * (1 if prepared.negative is None else 2)
        if needed > self._slots:
            raise InvalidJob(f"the job needs {needed} slots at once, this worker has {self._slots}")
        seed = _seed_of(job_id) if job.seed is None else job.seed
        limits = [limit for limit in (job.timeout, limit_seconds, self._max_seconds) if limit]
        if job.reproducible == "require" and self._unified:
            raise InvalidJob("this worker's memory is unified, so it cannot promise reproducible output")
        reproducible = self._reproducible_with_lora if adapters else self.reproducible
        exclusive = job.reproducible == "require" and not reproducible
        again = job.reproducible == "require" or (self._exact_resume and reproducible)
        sequences = self._choices(job, prepared, delivered, seed, again=again)
        for sequence in sequences:
            for part in sequence.parts:
                part.adapters = adapters
        attempt = Attempt(job_id, number, job.priority, min(limits), sequences, exclusive=exclusive)
        return PreparedJob(
            attempt, len(prepared.tokens), seed, reproducible or exclusive, choices=job.n, logprobs=job.logprobs
        )

    def _adapters(self, wanted: Iterable[LoraAdapter]) -> Adapters:
        known = self._model.adapters
        for adapter in wanted:
            if adapter.name not in known:
                raise InvalidJob(f"lora: this worker has no {adapter.name}, it has {', '.join(known) or 'no adapters'}")
        return tuple(sorted((adapter.name, adapter.scale) for adapter in wanted if adapter.scale))

    def _choices(
        self,
        job: GenerateJob,
        prepared: PreparedPrompt,
        delivered: Mapping[int, DeliveredChoice],
        seed: int,
        *,
        again: bool,
    ) -> list[Sequence]:
        """All choices, or none: if one cannot be made, what the others hold in llama.cpp is freed.

        What was delivered is decoded and drawn `again`, or read.
        """
        with ExitStack() as undo:

            def make_sampler(choice: int, said_tokens: int) -> LlamaSampler:
                # Choices must differ, and one that goes on after what was said must not draw its first numbers again.
                own_seed = (seed + 1_000_003 * choice + 7_919 * said_tokens) % (MAX_SEED + 1)
                sampler = self._prompts.sampler(job, prepared, own_seed)
                undo.callback(sampler.close)
                return sampler

            sequences: list[Sequence] = []
            for choice in range(job.n):
                said = delivered.get(choice, DeliveredChoice())
                sequences.append(self._sequence(job, prepared, choice, said, partial(make_sampler, choice)))
                if again and said.tokens and sequences[-1].finish_reason is None:
                    sequences[-1].redraw(make_sampler(choice, 0))
            undo.pop_all()
        return sequences

    def _sequence(
        self,
        job: GenerateJob,
        prepared: PreparedPrompt,
        choice: int,
        said: DeliveredChoice,
        make_sampler: Callable[[int], LlamaSampler],
    ) -> Sequence:
        """One choice; an earlier attempt's tokens are replayed, so that penalties, grammar and held text are there."""
        delivered = said.tokens
        if not all(0 <= token < self._model.n_vocab for token in delivered):
            raise OtherModel("the job was begun with another model: this one's vocabulary has not all of its tokens")
        sampler = make_sampler(len(delivered))
        text = Detokenizer(prepared.stop)
        for token in delivered:
            sampler.accept(token)
            text.feed(self._model.piece(token))

        def sequence(prompt: list[int]) -> Sequence:
            return Sequence(choice, [*prompt, *delivered], len(prompt), prepared.max_tokens, sampler, text)

        result = sequence(list(prepared.tokens))
        if prepared.negative is not None and job.guidance is not None:
            result.guide = sequence(list(prepared.negative))
            result.guide.guided = result
            result.guidance_scale = job.guidance.scale
        if said.finish_reason is not None:
            result.finish_reason = said.finish_reason
        elif text.stopped:
            result.finish_reason = "stop"
        elif len(delivered) >= prepared.max_tokens:
            result.finish_reason = "length"
        return result


def _seed_of(job_id: str) -> int:
    """A seed for a job that has none: the same in every attempt."""
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4]) % (MAX_SEED + 1)
