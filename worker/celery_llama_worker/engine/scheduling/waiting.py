"""The waiting room: sequences without a slot, the most urgent first; who may join, and who makes way. Engine thread."""

from __future__ import annotations

import bisect
import itertools

from celery_llama_worker.engine.scheduling.memory import PartitionedMemory
from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence

#: How often a job may lose its slot to a more urgent one; then it keeps it, so that nobody starves.
MOST_SET_ASIDE = 3
#: How often smaller ones may pass a sequence that does not fit.
MOST_PASSED = 16


class WaitingRoom:
    """Lets sequences in as slots fall free."""

    def __init__(self, memory: PartitionedMemory) -> None:
        #: Times that a sequence lost its slot to a more urgent one.
        self.set_aside = 0
        self._memory = memory
        #: In the order of admission; the number keeps two of the same order apart.
        self._entries: list[tuple[tuple[int, int], int, int, Attempt, Sequence]] = []
        self._numbers = itertools.count()

    def put(self, attempt: Attempt, sequence: Sequence) -> None:
        """Let a sequence wait for its slots."""
        bisect.insort(self._entries, (attempt.order, sequence.choice, next(self._numbers), attempt, sequence))

    def fill_slots(self, now: float) -> None:
        """Give slots to whoever comes next, as long as there are any (monotonic seconds).

        Who needs less may pass a sequence that does not fit, but only so often.
        """
        passed: list[Sequence] = []
        for entry in list(self._entries):
            *_, attempt, sequence = entry
            if attempt.ended or sequence.finish_reason is not None:
                self._entries.remove(entry)  # ended while it waited
            elif not self._may_join(attempt):
                return
            elif self._make_room(attempt, sequence):
                self._entries.remove(entry)
                for other in passed:
                    other.passed += 1
                attempt.deadline = min(attempt.deadline, now + attempt.timeout_seconds)
                self._memory.assign(attempt, sequence)
            elif self._memory.room < 1 or sequence.passed >= MOST_PASSED:
                return
            else:
                passed.append(sequence)

    def relieve(self) -> None:
        """Where cells have run short, set sequences aside until the others can go on."""
        while not self._memory.can_grow(self._next_cells()) and len(self._memory.running) > 1:
            victim, sequence = max(self._memory.running.values(), key=lambda item: item[0].order)
            self._set_aside(victim, sequence.guided or sequence)

    def _next_cells(self) -> int:
        """What the step needs at least: a cell for each decode row, or a chunk for the job that is first to read."""
        running = list(self._memory.running.values())
        if decoding := sum(sequence.decodes for _, sequence in running):
            return decoding
        first = min((attempt.order for attempt, _ in running), default=None)
        return max((self._memory.next_tokens(part) for attempt, part in running if attempt.order == first), default=0)

    def _may_join(self, attempt: Attempt) -> bool:
        """Whether the attempt may run beside those that run: an exclusive one shares with nobody."""
        return all(
            other is attempt or not (attempt.exclusive or other.exclusive) for other, _ in self._memory.running.values()
        )

    def _make_room(self, attempt: Attempt, sequence: Sequence) -> bool:
        """See to it that the sequence finds its slots, at less urgent attempts' cost if need be."""
        if self._memory.fits(sequence):
            return True
        victims: list[tuple[Attempt, Sequence]] = []
        for victim, other in sorted(self._memory.running.values(), key=lambda item: item[0].order, reverse=True):
            if other.guided is None and victim.priority > attempt.priority and victim.set_aside < MOST_SET_ASIDE:
                victims.append((victim, other))
                if self._memory.would_fit(sequence, [choice for _, choice in victims]):
                    break
        else:
            return False
        for victim, other in victims:
            self._set_aside(victim, other)
        return self._memory.fits(sequence)

    def _set_aside(self, attempt: Attempt, sequence: Sequence) -> None:
        attempt.set_aside += 1
        self.set_aside += 1
        self._memory.set_aside(sequence)
        self.put(attempt, sequence)
