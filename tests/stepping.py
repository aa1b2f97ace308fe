"""Drives a scheduler and a fake engine step by step, and checks at every step what holds at every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from celery_llama.protocol.results import JobError
from celery_llama_worker.engine.detokenizer import Detokenizer
from celery_llama_worker.engine.outputs import Began, Departed, Ended, EndReason, Output, Read, Text
from celery_llama_worker.engine.pace import UNKNOWN, Speed
from celery_llama_worker.engine.plan import Adapters, Engine, Limits, Piece, Plan
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence
from tests.fakes import FakeEngine, FakeSampler, FakeVocabulary

VOCABULARY = FakeVocabulary()


def sequence(
    prompt: Iterable[int],
    *,
    choice: int = 0,
    max_tokens: int = 8,
    stop: Iterable[str] = (),
    sampler: FakeSampler | None = None,
    negative: Iterable[int] = (),
    adapters: Adapters = (),
) -> Sequence:
    """A text that begins with this prompt, led away from a negative one if there is one."""
    parts = sampler or FakeSampler(), Detokenizer(stop)
    tokens, repelling = list(prompt), list(negative)
    text = Sequence(choice, tokens, len(tokens), max_tokens, *parts)
    if repelling:
        text.guide = Sequence(choice, repelling, len(repelling), max_tokens, *parts, guided=text)
    for part in text.parts:
        part.adapters = adapters
    return text


def attempt(
    job_id: str,
    *sequences: Sequence,
    priority: int = 5,
    number: int = 1,
    timeout_seconds: float = 1e6,
    exclusive: bool = False,
) -> Attempt:
    """A job with these choices."""
    return Attempt(job_id, number, priority, timeout_seconds, list(sequences), exclusive)


def letters(text: str) -> list[int]:
    """The tokens whose text this is."""
    return [ord(letter) - 97 for letter in text]


@dataclass
class Said:
    """What the engine has said about a job."""

    texts: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    began: list[Began] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    departed: int = 0
    end: Ended | None = None

    def take(self, output: Output) -> None:
        """Note an output; nothing may follow the end, or a choice's end."""
        assert self.end is None
        match output:
            case Began():
                assert not self.began
                self.began.append(output)
            case Read():
                self.reads.append(output)
            case Departed():
                self.departed += 1
            case Text():
                assert output.choice not in self.reasons
                self.texts[output.choice] = self.texts.get(output.choice, "") + output.text
                self.tokens.setdefault(output.choice, []).extend(sampled.token for sampled in output.tokens)
                if output.finish_reason:
                    self.reasons[output.choice] = output.finish_reason
            case Ended():
                self.end = output


class Rig:
    """A scheduler and an engine of few and small slots: a chunk is four tokens, and a step reads two of them."""

    def __init__(
        self,
        *,
        slots: int = 4,
        cells: int = 64,
        chunk: int = 4,
        prefill: int = 8,
        share: bool = True,
        can_trim: bool = True,
        rounding: bool = False,
        store_bytes: int = 0,
        shared_cells: bool = False,
        step_seconds: float = math.inf,
        speed: Speed = UNKNOWN,
    ) -> None:
        spare_slots = 1 if can_trim else 0
        limits = Limits(slots, cells, max(prefill, slots + 1), can_trim, spare_slots, shared_cells)
        self.engine = FakeEngine(limits, rounding=rounding)
        self.scheduler = GenerateScheduler(
            limits,
            VOCABULARY,
            chunk_tokens=chunk,
            prefill_tokens=prefill,
            step_seconds=step_seconds,
            speed=speed,
            share_prefixes=share,
            store_bytes=store_bytes,
        )
        self.said: dict[str, Said] = {}
        self.now = 0.0
        self._chunk, self._prefill = chunk, prefill

    def add(self, *attempts: Attempt) -> None:
        """Take in jobs."""
        for one in attempts:
            self.said[one.job_id] = Said()
            self.note(self.scheduler.add(one))

    def end(self, job_id: str, reason: EndReason, error: JobError | None = None) -> None:
        """End a job early."""
        self.note(self.scheduler.end(job_id, reason, error))
        self.scheduler.tidy()

    def step(self) -> Plan:
        """One step, as the engine thread makes it."""
        self.note(self.scheduler.expire(self.now))
        plan = self.scheduler.plan(self.now)
        self._check(plan)
        for call, result in zip(plan.calls, self.engine.execute(plan), strict=False):
            self.note(self.scheduler.commit(call, result))
        self.scheduler.tidy()
        return plan

    def steps(self, count: int) -> None:
        """Several steps."""
        for _ in range(count):
            self.step()

    def run(self, *attempts: Attempt, within: int = 500) -> int:
        """Take in jobs and step until all have ended; how many steps that took."""
        self.add(*attempts)
        for count in range(within):
            if self.scheduler.idle:
                return count
            self.step()
        raise AssertionError(f"after {within} steps there are still jobs: {self.scheduler.job_ids}")

    def watch(self, *attempts: Attempt) -> list[Plan]:
        """Take in jobs and step until all have ended; the steps."""
        self.add(*attempts)
        plans: list[Plan] = []
        while not self.scheduler.idle:
            plans.append(self.step())
        return plans

    def note(self, outputs: Iterable[Output]) -> None:
        """Keep what was said, by job."""
        for output in outputs:
            self.said[output.job_id].take(output)

    def _check(self, plan: Plan) -> None:
        assert plan.calls, "a step that has jobs computes something"
        pieces = [piece for call in plan.calls for piece in call]
        assert len({piece.slot for piece in pieces}) == len(pieces), "nobody shares a slot"
        chunks = chunks_of(plan)
        assert pieces == rows_of(plan) + chunks, "decode rows come before prompts"
        assert sum(len(piece.tokens) for piece in chunks) <= self._prefill
        for piece in pieces:
            last = piece.start + len(piece.tokens) - 1
            assert piece.start // self._chunk == last // self._chunk, "a prompt is cut at multiples of the chunk"
        if self.engine.limits.spare_slots and not self.engine.limits.shared_cells:
            for adapters in {piece.adapters for piece in rows_of(plan)}:
                rows = sorted(piece.slot for piece in rows_of(plan) if piece.adapters == adapters)
                assert rows == list(range(rows[0], rows[0] + len(rows))), "rows are side by side"


def rows_of(plan: Plan) -> list[Piece]:
    """The decode rows of a plan."""
    return [piece for call in plan.calls for piece in call if len(piece.tokens) == 1 and piece.wants_logits]


def chunks_of(plan: Plan) -> list[Piece]:
    """The parts of prompts that a plan reads."""
    return [piece for call in plan.calls for piece in call if len(piece.tokens) > 1 or not piece.wants_logits]


def tokens_of_jobs(
    scheduler: GenerateScheduler,
    engine: Engine,
    arrivals: Callable[[int], Iterable[Attempt]],
    last_arrival: int,
    ends: Callable[[int], Iterable[str]] = lambda _step: (),
) -> dict[str, dict[int, list[int]]]:
    """Step a real engine until all jobs that arrive have ended; the tokens of every job's choices."""
    tokens: dict[str, dict[int, list[int]]] = {}
    step = 0
    while step <= last_arrival or not scheduler.idle:
        outputs = [output for attempt in arrivals(step) for output in scheduler.add(attempt)]
        outputs += [output for job_id in ends(step) for output in scheduler.end(job_id, "cancelled")]
        plan = scheduler.plan(0.0)
        for call, result in zip(plan.calls, engine.execute(plan), strict=True):
            outputs += scheduler.commit(call, result)
        scheduler.tidy()
        for output in outputs:
            if isinstance(output, Text):
                said = tokens.setdefault(output.job_id, {}).setdefault(output.choice, [])
                said += [sampled.token for sampled in output.tokens]
            elif isinstance(output, Ended):
                assert output.reason in {"done", "cancelled"}, output
        step += 1
    return tokens
