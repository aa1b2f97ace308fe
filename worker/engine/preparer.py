"""Makes a job's sequences: prompt, sampler and text stream together. Runs on the admit thread."""

from __future__ import annotations

from producer.jobs import GenerateJob
from worker.engine.detokenizer import Detokenizer
from worker.engine.model import LlamaModel
from worker.engine.prompt import Prepared, PromptBuilder
from worker.engine.sequence import Sequence


class JobPreparer:
    """Prepares jobs for one model and one size of slot."""

    def __init__(self, model: LlamaModel, slot_tokens: int) -> None:
        self._model = model
        self._prompts = PromptBuilder(model, slot_tokens)

    def piece(self, token: int) -> bytes:
        """A token's bytes."""
        return self._model.piece(token)

    def prepare(self, job: GenerateJob) -> Prepared:
        """Template, tokens, lengths, grammar; raises InvalidJob."""
        return self._prompts.prepare(job)

    def sequence(self, job: GenerateJob, prepared: Prepared, choice: int, delivered: list[int], seed: int) -> Sequence:
        """One choice, ready for the engine; an earlier attempt's tokens are replayed, so that penalties, grammar and
        held-back text are where they were. Raises InvalidJob, BadGrammar, EngineFault."""
        sampler = self._prompts.sampler(job, prepared, seed)
        text = Detokenizer(prepared.stop)
        for token in delivered:
            sampler.accept(token)
            text.feed(self._model.piece(token))
        sequence = Sequence(
            choice=choice,
            tokens=[*prepared.tokens, *delivered],
            prompt_tokens=len(prepared.tokens),
            max_tokens=prepared.max_tokens,
            sampler=sampler,
            text=text,
        )
        if text.stopped:
            sequence.finish_reason = "stop"
        elif len(delivered) >= prepared.max_tokens:
            sequence.finish_reason = "length"
        return sequence
