"""What a job's events have told its reader so far: where an attempt resumes, what a cancelled job ends with. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from celery_llama.protocol.events import Event, Started, Token
from celery_llama.protocol.results import FinishReason, TokenLogprob


@dataclass(slots=True)
class DeliveredChoice:
    """What was delivered of one choice."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    #: Set if the choice is complete.
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Delivered:
    """What the events so far have told a reader."""

    #: The next event's number is one more.
    last_seq: int = 0
    #: By index; a choice without a token is absent.
    choices: dict[int, DeliveredChoice] = field(default_factory=dict)
    #: Whether a `started` event was among them; the fingerprint and the counts are the last one's.
    started: bool = False
    fingerprint: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    #: Whether the terminal event was among them.
    ended: bool = False


def delivered(events: Iterable[Event]) -> Delivered:
    """Add up the events of a job, given in order."""
    total = Delivered()
    texts: dict[int, list[str]] = {}
    for event in events:
        total.last_seq = event.seq
        total.ended = event.terminal
        if isinstance(event, Token):
            choice = total.choices.setdefault(event.choice, DeliveredChoice())
            texts.setdefault(event.choice, []).append(event.text)
            choice.tokens += event.tokens
            choice.logprobs += event.logprobs or ()
            choice.finish_reason = event.finish_reason or choice.finish_reason
        elif isinstance(event, Started):
            total.started, total.fingerprint = True, event.fingerprint
            total.prompt_tokens, total.cached_tokens = event.prompt_tokens, event.cached_tokens
    for index, parts in texts.items():
        total.choices[index].text = "".join(parts)
    return total
