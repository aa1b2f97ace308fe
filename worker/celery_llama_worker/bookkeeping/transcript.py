"""The transcript of an attempt: turns the engine's outputs into numbered events, and at the end into the result.

One per claimed job. Made on the admit thread, then owned by the publisher. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_llama.ledger.ledger import Emission
from celery_llama.protocol.delivered import Delivered
from celery_llama.protocol.events import encode_event
from celery_llama.protocol.results import Choice, EndStatus, FinishReason, Result, Timings, TokenLogprob, Usage
from celery_llama_worker.engine.outputs import Began, Departed, Ended, EndReason, Output, Read, Text, Vector
from celery_llama_worker.engine.plan import Sampled

#: What ended a choice that the engine never saw, or did not see to its end.
_UNFINISHED: dict[EndReason, FinishReason] = {"cancelled": "cancelled", "timeout": "timeout"}

#: OpenAI's value for what cannot be; JSON has no infinity.
LEAST_LOGPROB = -9999.0


@dataclass(slots=True)
class TranscriptChoice:
    """What one choice has said so far, in this attempt and before."""

    text: list[str] = field(default_factory=list)
    tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Transcript:
    """What has been said about a job, and the number of its next event."""

    job_id: str
    attempt: int
    #: Attempts that count, this one included; those that were handed back do not.
    attempts: int
    worker: str
    model: str
    piece: Callable[[int], bytes]
    #: Of the model and of the adapters that the job uses.
    fingerprint: str = ""
    #: Server's and worker's clocks compared: seconds between submission and claim.
    queued_seconds: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seed: int | None = None
    reproducible: bool | None = None
    logprobs: bool = False
    choices: list[TranscriptChoice] = field(default_factory=lambda: [TranscriptChoice()])
    #: Of an embedding job: its texts' vectors, in order. They are in the result alone, not in events.
    vectors: list[list[float]] = field(default_factory=list)
    #: Number of the last event; continues over attempts.
    seq: int = 0
    #: Whether an earlier attempt has said that the job has started: readers see a pause, not a restart.
    started: bool = False
    claimed_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    #: Tokens that this attempt has produced; those of its first event.
    produced_tokens: int = 0
    first_tokens: int = 0

    def resume(self, so_far: Delivered) -> None:
        """Go on where an earlier attempt stopped."""
        self.seq, self.started = so_far.last_seq, so_far.started
        self.prompt_tokens, self.cached_tokens = so_far.prompt_tokens, so_far.cached_tokens
        self._have_choices(max(so_far.choices, default=0) + 1)
        for index, choice in so_far.choices.items():
            said = [choice.text], len(choice.tokens), list(choice.logprobs)
            self.choices[index] = TranscriptChoice(*said, choice.finish_reason)

    def describe(
        self, *, choices: int, prompt_tokens: int, seed: int | None, reproducible: bool | None, logprobs: bool
    ) -> None:
        """Take note of what is known once the job is prepared."""
        self._have_choices(choices)
        self.prompt_tokens, self.seed = prompt_tokens, seed
        self.reproducible, self.logprobs = reproducible, logprobs

    def _have_choices(self, count: int) -> None:
        self.choices += [TranscriptChoice() for _ in range(count - len(self.choices))]

    def write(self, outputs: Sequence[Output]) -> Emission:
        """The events of these outputs; tokens of one choice that follow each other share an event."""
        events: list[tuple[int, str]] = []
        pending: list[Text] = []
        for output in outputs:
            if pending and not (isinstance(output, Text) and output.choice == pending[0].choice):
                self._flush(pending, events)
            match output:
                case Text():
                    pending.append(output)
                case Began():
                    self._begin(output, events)
                case Read():
                    fields = {"read_tokens": output.read_tokens, "prompt_tokens": self.prompt_tokens}
                    events.append(self._event("progress", fields))
                case Vector():
                    # nine digits are what tells two neighbours among such numbers apart
                    self.vectors.append([float(f"{value:.9g}") for value in output.values.tolist()])
                case Departed():
                    self.reproducible = False
                case Ended():
                    pass
        self._flush(pending, events)
        return Emission(self.job_id, self.attempt, events)

    def end(self, ended: Ended) -> tuple[int, str, Result]:
        """The terminal event, its number, and the result."""
        result = self._result(ended)
        if ended.error is not None:
            seq, event = self._event("failed", {"error": ended.error.model_dump()})
        else:
            fields = {
                "status": result.status,
                "finish_reason": [choice.finish_reason for choice in result.choices],
                "usage": result.usage.model_dump(),
                "timings": result.timings.model_dump(exclude_none=True),
            }
            seq, event = self._event("finished", fields)
        return seq, event, result

    def _begin(self, began: Began, events: list[tuple[int, str]]) -> None:
        self.cached_tokens = began.cached_tokens
        if self.started:
            return
        self.started = True
        fields: dict[str, Any] = {
            "worker": self.worker,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
        }
        if self.queued_seconds is not None:
            fields["queued_s"] = round(self.queued_seconds, 4)
        events.append(self._event("started", fields))

    def _flush(self, pending: list[Text], events: list[tuple[int, str]]) -> None:
        if not pending:
            return
        index = pending[0].choice
        choice = self.choices[index]
        text = "".join(output.text for output in pending)
        tokens = [sampled for output in pending for sampled in output.tokens]
        ends = choice.finish_reason is None and pending[-1].finish_reason is not None
        choice.finish_reason = pending[-1].finish_reason
        pending.clear()
        # A choice's end is said although it may have no text: an attempt that goes on must know what is complete.
        if not (text or tokens or ends) or self.vectors:
            return
        if tokens and self.first_token_at is None:
            self.first_token_at, self.first_tokens = time.monotonic(), len(tokens)
        choice.text.append(text)
        choice.tokens += len(tokens)
        self.produced_tokens += len(tokens)
        fields: dict[str, Any] = {
            "choice": index,
            "text": text,
            "tokens": [sampled.token for sampled in tokens],
        }
        if ends:
            fields["finish_reason"] = choice.finish_reason
        if self.logprobs:
            entries = [self._logprob(sampled) for sampled in tokens]
            choice.logprobs += entries
            fields["logprobs"] = [entry.model_dump(exclude_defaults=True) for entry in entries]
        events.append(self._event("token", fields))

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            piece = self.piece(token)
            text = piece.decode(errors="replace")
            return {"id": token, "token": text, "bytes": list(piece), "logprob": round(max(logprob, LEAST_LOGPROB), 6)}

        assert sampled.logprob is not None
        alternatives = [TokenLogprob(**entry(*alternative)) for alternative in sampled.alternatives]
        return TokenLogprob(**entry(sampled.token, sampled.logprob), top_logprobs=alternatives)

    def _event(self, kind: str, fields: dict[str, Any]) -> tuple[int, str]:
        self.seq += 1
        return self.seq, encode_event(self.attempt, self.seq, kind, fields)

    def _result(self, ended: Ended) -> Result:
        now = time.monotonic()
        for unfinished in (choice for choice in self.choices if choice.finish_reason is None):
            unfinished.finish_reason = _UNFINISHED.get(ended.reason)
        choices = [
            Choice(
                index=index,
                text="".join(choice.text),
                finish_reason=choice.finish_reason,
                logprobs=choice.logprobs if self.logprobs else None,
            )
            for index, choice in enumerate(self.choices)
        ]
        decoding, later = now - (self.first_token_at or now), self.produced_tokens - self.first_tokens
        return Result(
            id=self.job_id,
            status=self._status(ended),
            choices=choices,
            embeddings=self.vectors if self.vectors and ended.reason == "done" else None,
            usage=Usage(
                prompt_tokens=self.prompt_tokens,
                completion_tokens=sum(choice.tokens for choice in self.choices),
                cached_tokens=self.cached_tokens,
            ),
            timings=Timings(
                queued_s=None if self.queued_seconds is None else round(self.queued_seconds, 4),
                first_token_s=None if self.first_token_at is None else round(self.first_token_at - self.claimed_at, 4),
                total_s=round(now - self.claimed_at, 4),
                tokens_per_s=round(later / decoding, 2) if later and decoding > 0 else None,
            ),
            model=self.model,
            seed=self.seed,
            reproducible=self.reproducible,
            attempts=self.attempts,
            error=ended.error,
        )

    def _status(self, ended: Ended) -> EndStatus:
        match ended.reason:
            case "failed":
                return "failed"
            case "cancelled":
                return "cancelled"
            case _:
                cut = any(choice.finish_reason != "stop" for choice in self.choices)
                return "incomplete" if cut else "completed"
