"""A sequence: one text being decoded. An attempt owns one or more of them (`n` choices).

Owned by the scheduler, on the engine thread, from the moment the attempt is added. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from celery_llama.protocol.results import FinishReason
from celery_llama_worker.engine.attempt import JobAttempt
from celery_llama_worker.engine.plan import Adapters, Piece, Sampled, Sampler, Vocabulary


class TextStream(Protocol):
    """Turns tokens' bytes into text that may be shown (`detokenizer.TextStream`)."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string has appeared."""

    def feed(self, piece: bytes) -> str:
        """Text that this token releases."""

    def finish(self) -> str:
        """Text that was held back and is now known not to be part of a stop string."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One text: its tokens, how many of them have cells, and what turns them into text."""

    choice: int
    #: Prompt, then what was generated, by earlier attempts too.
    tokens: list[int]
    prompt_tokens: int
    max_tokens: int
    sampler: Sampler
    text: TextStream
    adapters: Adapters = ()

    slot: int | None = None
    #: Cells: the first `read` tokens have been computed.
    read: int = 0
    #: Of a job with several choices: as much of the prompt as one reads for all. Each computes the last token itself.
    fork_at: int = 0
    #: The negative prompt's sequence, which gets the same tokens, and how strongly it repels.
    guide: Sequence | None = None
    guidance_scale: float = 1.0
    #: The sequence that this one guides; then this one samples nothing.
    guided: Sequence | None = None

    #: How often smaller ones have passed it while it waited.
    passed: int = 0
    #: Where the cells were put when the sequence was set aside.
    saved: int | None = None
    #: Cells that were copied from a neighbour instead of computed.
    cached: int = 0
    #: Up to this many cells it runs in calls of its own, because a call that would have led there failed.
    suspect_until: int = 0
    finish_reason: FinishReason | None = None
    #: Tokens whose text is held back; they go out with the next text.
    held: list[Sampled] = field(default_factory=list)
    #: What earlier attempts said is decoded and drawn as it was the first time, so that the rest will be the same, too.
    redraws: bool = False
    #: Goes on where drawing again gives something else: it has taken note of all that was said.
    spare: Sampler | None = None

    @property
    def known(self) -> list[int]:
        """Its tokens, as far as computing goes: one that draws again learns a token when it comes to it."""
        return self.tokens[: self._horizon] if self.redraws else self.tokens

    @property
    def _horizon(self) -> int:
        whole = len(self.tokens)
        return max(self.prompt_tokens, min(self.read + 1, whole)) if self.redraws else whole

    @property
    def remaining(self) -> int:
        """Tokens that are known and have no cell yet."""
        return self._horizon - self.read

    @property
    def draws_again(self) -> bool:
        """Whether the token after its cells has been said by an earlier attempt."""
        return self.redraws and self.read < len(self.tokens)

    @property
    def suspect(self) -> bool:
        """Whether it, or its partner in guidance, may be what makes a call fail."""
        pair = (self, self.guide or self.guided)
        return any(part is not None and part.read < part.suspect_until for part in pair)

    @property
    def generated_tokens(self) -> int:
        """Tokens beyond the prompt."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def parts(self) -> Iterator[Sequence]:
        """The sequences that take a slot each: this one, and its negative prompt's."""
        yield self
        if self.guide is not None:
            yield self.guide

    @property
    def width(self) -> int:
        """How many slots it takes."""
        return 1 if self.guide is None else 2

    @property
    def decodes(self) -> bool:
        """Whether the next piece is a decode row; of a guided pair both are, in the same call, or neither."""
        partner = self.guide or self.guided
        return self.remaining == 1 and (partner is None or partner.remaining == 1)

    @property
    def reads(self) -> bool:
        """Whether the next piece is a chunk."""
        return self.remaining > 1

    def piece(self, chunk_tokens: int) -> Piece:
        """What to compute next: one decode row, or the tokens up to the next multiple of the chunk size."""
        assert self.slot is not None
        # A pair samples from both prompts' logits, which must come from one call: so its last tokens are decode rows.
        paired = self.guide is not None or self.guided is not None
        last = self._horizon - (paired and self.remaining > 1)
        end = min((self.read // chunk_tokens + 1) * chunk_tokens, last)
        if self.read < self.fork_at:
            end = min(end, self.fork_at)
        samples = end == self._horizon
        guide = None
        if samples and self.guide is not None and self.guide.slot is not None:
            guide = (self.guide.slot, self.guidance_scale)
        sampler = self.sampler if samples and self.guided is None else None
        tokens, guides = self.tokens[self.read : end], samples and self.guided is not None
        return Piece(self.slot, self.read, tokens, sampler, guide, guides, self.adapters)

    def take(self, sampled: Sampled, vocabulary: Vocabulary, cells: int) -> str:
        """Add a sampled token; returns the text it releases and sets `finish_reason` at the end."""
        if vocabulary.is_end(sampled.token):
            self.finish_reason = "stop"
            return self.text.finish()
        for part in self.parts:
            part.tokens.append(sampled.token)
        self.held.append(sampled)
        text = self.text.feed(vocabulary.piece(sampled.token))
        if self.text.stopped:
            self.finish_reason = "stop"
        elif self.generated_tokens >= self.max_tokens or len(self.tokens) >= cells:
            text += self.text.finish()
            self.finish_reason = "stop" if self.text.stopped else "length"
        return text

    def redraw(self, sampler: Sampler) -> None:
        """Decode and draw again what earlier attempts said; `sampler` is as new."""
        self.spare, self.sampler = self.sampler, sampler
        for part in self.parts:
            part.redraws = True

    def stop_redrawing(self) -> None:
        """Read from now on what earlier attempts said and has no cells yet."""
        if self.redraws and self.spare is not None:
            self.sampler, self.spare = self.spare, self.sampler
        for part in self.parts:
            part.redraws = False

    def release_held(self) -> list[Sampled]:
        """The tokens that go out with the text just released."""
        held, self.held = self.held, []
        return held


@dataclass(slots=True, eq=False)
class Attempt(JobAttempt):
    """A claimed generating job in the engine: one attempt of a worker to produce its choices."""

    sequences: list[Sequence]
    #: Nothing else may run at the same time: the job wants reproducible output where neighbours would change it.
    exclusive: bool = False
    #: How often a more urgent job has taken its slot.
    set_aside: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        if len(self.sequences) > 1:
            for part in (part for choice in self.sequences for part in choice.parts):
                part.fork_at = part.prompt_tokens - 1

    @property
    def unfinished(self) -> list[Sequence]:
        """Choices that have not ended."""
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    def shared_piece(self, sequence: Sequence, start: int, chunk_tokens: int) -> object:
        """What others can copy of the piece at `start`: a chunk short of the last token; siblings, up to the fork."""
        end = start + chunk_tokens
        if start < sequence.fork_at < end:
            return self.job_id, tuple(sequence.tokens[start : sequence.fork_at])
        known = sequence.known
        return tuple(known[start:end]) if end < len(known) else None
