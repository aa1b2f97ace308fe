"""The scheduler: which sequences have a slot, what the next step computes, what came of it. Pure; on the engine thread.

`plan` writes a step, `commit` accounts for one call of it. Decode rows come first and in one call; then prompts are
read, a chunk of each, until the step's budget is spent. So a prompt of any length delays its neighbours by one chunk a
step.
"""

from __future__ import annotations

import math

from celery_llama.protocol.results import FinishReason, JobError
from celery_llama_worker.engine.attempt import Attempts
from celery_llama_worker.engine.counters import Counters
from celery_llama_worker.engine.outputs import Began, Departed, Ended, EndReason, Output, Read, Text
from celery_llama_worker.engine.pace import UNKNOWN, Pace, Speed
from celery_llama_worker.engine.plan import (
    Adapters,
    Call,
    CallError,
    CallResult,
    Limits,
    Piece,
    Plan,
    Sampled,
    Vocabulary,
)
from celery_llama_worker.engine.scheduling.calls import decode_calls, prefill_calls, with_fewest_switches
from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence
from celery_llama_worker.engine.scheduling.unified import make_memory
from celery_llama_worker.engine.scheduling.waiting import WaitingRoom

#: Prompts longer than this report how far they have been read, every so many tokens.
PROGRESS_TOKENS = 512

_FINISH: dict[EndReason, FinishReason] = {"timeout": "timeout", "cancelled": "cancelled"}


class GenerateScheduler:
    """Decides and accounts; computes nothing."""

    def __init__(
        self,
        limits: Limits,
        vocabulary: Vocabulary,
        *,
        chunk_tokens: int,
        prefill_tokens: int,
        step_seconds: float = math.inf,
        speed: Speed = UNKNOWN,
        share_prefixes: bool = True,
        store_bytes: int = 0,
    ) -> None:
        """A step reads `prefill_tokens` at most, and no more than one chunk if more would take over `step_seconds`."""
        self.counters = Counters()
        self._limits = limits
        self._vocabulary = vocabulary
        self._chunk_tokens = chunk_tokens
        self._pace = Pace(min(prefill_tokens, limits.batch_tokens), chunk_tokens, step_seconds, speed)
        self.counters.longest_call_seconds = self._pace.longest_call_seconds
        self._memory = make_memory(
            limits, chunk_tokens=chunk_tokens, share_prefixes=share_prefixes, store_bytes=store_bytes
        )
        self._attempts: Attempts[Attempt] = Attempts()
        self._waiting = WaitingRoom(self._memory)
        self._retired: list[Sequence] = []
        #: What the last step's last call was computed with.
        self._adapters: Adapters = ()

    # ---- jobs come and go

    def add(self, attempt: Attempt) -> list[Output]:
        """Take in an attempt, in place of an earlier one of the same job; its sequences wait for slots.

        What earlier attempts finished is reported as finished; an attempt that is complete already ends at once.
        """
        outputs = self.end(attempt.job_id, "dropped")
        self._attempts[attempt.job_id] = attempt
        for sequence in attempt.sequences:
            if sequence.finish_reason is None:
                self._waiting.put(attempt, sequence)
            else:
                outputs.append(_text(attempt, sequence, ""))
        self._take_stock()
        return outputs if attempt.unfinished else outputs + self._close(attempt, "done")

    def end(self, job_id: str, reason: EndReason, error: JobError | None = None) -> list[Output]:
        """End an attempt early; its text so far goes out. Nothing if it is not here (any more)."""
        attempt = self._attempts.get(job_id)
        if attempt is None:
            return []
        outputs: list[Output] = []
        for sequence in attempt.unfinished:
            if reason in _FINISH:
                sequence.finish_reason = _FINISH[reason]
                outputs.append(_text(attempt, sequence, sequence.text.finish()))
        return outputs + self._close(attempt, reason, error)

    def expire(self, now: float) -> list[Output]:
        """End the attempts whose time is up (monotonic seconds)."""
        return [output for job_id in self._attempts.late(now) for output in self.end(job_id, "timeout")]

    def tidy(self) -> None:
        """Free the samplers of sequences that have ended; between steps, since a plan's calls may still use them."""
        while self._retired:
            sequence = self._retired.pop()
            sequence.sampler.close()
            if sequence.spare is not None:
                sequence.spare.close()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._attempts

    @property
    def job_ids(self) -> list[str]:
        """The jobs that are here, waiting or running."""
        return list(self._attempts)

    # ---- one step

    def plan(self, now: float) -> Plan:
        """Write the next step."""
        self._waiting.fill_slots(now)
        self._waiting.relieve()
        reading = self._choose_readers()
        self._memory.arrange()
        decoding = [sequence for _, sequence in self._memory.running.values() if sequence.decodes]
        calls = with_fewest_switches(
            decode_calls(decoding, self._chunk_tokens), prefill_calls(reading, self._chunk_tokens), self._adapters
        )
        self._adapters = calls[-1][0].adapters if calls else self._adapters
        self._note_step(len(decoding), bool(calls))
        return Plan(self._memory.take_operations(), calls)

    def commit(self, call: Call, result: CallResult) -> list[Output]:
        """Account for one call of the plan."""
        if result.error is not None:
            return self._commit_failure(call, result.error)
        self._note_pace(call, result.seconds)
        outputs: list[Output] = []
        for piece in call:
            attempt, sequence = self._memory.running.get(piece.slot, (None, None))
            if attempt is None or sequence is None:
                continue  # a sibling's fault has ended the attempt in this very call
            self._advance(attempt, sequence, piece)
            outputs += self._report(attempt, sequence, piece)
            if piece.slot in result.faults:
                outputs += self.end(
                    attempt.job_id, "failed", JobError(code="engine_error", message=result.faults[piece.slot])
                )
            elif piece.slot in result.sampled and sequence.draws_again:
                outputs += _compare(attempt, sequence, result.sampled[piece.slot])
            elif piece.slot in result.sampled:
                sequence.redraws = False
                self.counters.generated_tokens += 1
                text = sequence.take(result.sampled[piece.slot], self._vocabulary, self._limits.cells_per_slot)
                if text or sequence.finish_reason:
                    outputs.append(_text(attempt, sequence, text))
                if sequence.finish_reason:
                    self._retire(sequence)
                    if not attempt.unfinished:
                        outputs += self._close(attempt, "done")
        return outputs

    # ---- planning

    def _choose_readers(self) -> list[Sequence]:
        """Whose prompts this step goes on reading; one that finds all but its last token in the cells decodes."""
        tokens, budget = 0, self._pace.budget_tokens
        decoding = sum(sequence.decodes for _, sequence in self._memory.running.values())
        claimed: set[object] = set()
        chosen: list[Sequence] = []
        for attempt, sequence in sorted(self._memory.running.values(), key=lambda item: item[0].order):
            if not sequence.reads or self._memory.must_wait(attempt, sequence, claimed):
                continue
            if sequence.remaining == 1:
                decoding += 1  # it found all the rest in a neighbour's cells
                continue
            tokens += self._memory.next_tokens(sequence)
            if (chosen and tokens > budget) or not self._memory.can_grow(decoding + tokens):
                break
            chosen.append(sequence)
        return chosen

    # ---- accounting

    def _note_step(self, decode_rows: int, computing: bool) -> None:
        self.counters.note_step(computing, decode_rows, self._limits.slots)
        self.counters.copied_tokens = self._memory.copied_tokens
        self.counters.set_aside = self._waiting.set_aside
        self._take_stock()

    def _note_pace(self, call: Call, seconds: float) -> None:
        if not seconds:
            return
        if len(call[0].tokens) == 1:
            self._pace.note_rows(seconds)
        else:
            self._pace.note_chunks(len(call[0].tokens) * len(call), seconds)
        self.counters.longest_call_seconds = self._pace.longest_call_seconds

    def _take_stock(self) -> None:
        running = self._memory.running.values()
        unfinished = sum(len(attempt.unfinished) for attempt in self._attempts.values())
        self.counters.take_stock(
            active=len(running),
            waiting=unfinished - sum(sequence.guided is None for _, sequence in running),
            least_urgent=max((attempt.priority for attempt, _ in running), default=0),
            cells_used=sum(sequence.read for _, sequence in running),
        )

    def _advance(self, attempt: Attempt, sequence: Sequence, piece: Piece) -> None:
        self._memory.computed(attempt, sequence, tuple(piece.tokens))
        if len(piece.tokens) > 1:
            self.counters.read_tokens += len(piece.tokens)

    def _report(self, attempt: Attempt, sequence: Sequence, piece: Piece) -> list[Output]:
        outputs: list[Output] = []
        if not attempt.started:
            attempt.started = True
            main = sequence.guided or sequence
            outputs.append(Began(attempt.job_id, attempt.number, min(main.cached, main.prompt_tokens)))
        first = sequence is attempt.sequences[0]
        if (
            first
            and sequence.remaining > 0
            and len(sequence.tokens) > PROGRESS_TOKENS
            and piece.start // PROGRESS_TOKENS != sequence.read // PROGRESS_TOKENS
        ):
            outputs.append(Read(attempt.job_id, attempt.number, sequence.read))
        return outputs

    def _commit_failure(self, call: Call, error: CallError) -> list[Output]:
        """One job's call failed: that job ends. Several jobs' call failed: each is tried in a call of its own."""
        owners: set[str] = set()
        for piece in call:
            if piece.slot in self._memory.running:
                attempt, sequence = self._memory.running[piece.slot]
                owners.add(attempt.job_id)
                sequence.suspect_until = piece.start + len(piece.tokens)
        if error.cells_lost:
            for _, sequence in self._memory.running.values():
                if sequence.read >= sequence.prompt_tokens:  # its sampler has begun to draw, and cannot begin anew
                    sequence.stop_redrawing()
            self._memory.lose_cells()
        if len(owners) > 1:
            return []
        problem = JobError(code="engine_error", message=error.message)
        return [output for job_id in owners for output in self.end(job_id, "failed", problem)]

    def _retire(self, sequence: Sequence) -> None:
        self._memory.release(sequence)
        self._retired.append(sequence)

    def _close(self, attempt: Attempt, reason: EndReason, error: JobError | None = None) -> list[Output]:
        attempt.ended = True
        del self._attempts[attempt.job_id]
        for sequence in attempt.sequences:
            self._retire(sequence)
        self._take_stock()
        return [Ended(attempt.job_id, attempt.number, reason, error)]


def _compare(attempt: Attempt, sequence: Sequence, sampled: Sampled) -> list[Output]:
    """What was drawn again has been said before; if it is something else, what was said holds."""
    if sampled.token == sequence.tokens[sequence.read]:
        return []
    sequence.stop_redrawing()
    return [Departed(attempt.job_id, attempt.number)]


def _text(attempt: Attempt, sequence: Sequence, text: str) -> Text:
    return Text(attempt.job_id, attempt.number, sequence.choice, text, sequence.release_held(), sequence.finish_reason)
