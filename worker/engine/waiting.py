"""The waiting room: sequences without a slot, the most urgent first; who may join, and who makes way. Engine thread."""

from __future__ import annotations

import heapq
import itertools

from worker.engine.memory import PartitionedMemory
from worker.engine.sequence import Attempt, Sequence

#: How often a job may lose its slot to a more urgent one; then it keeps it, so that nobody starves.
MOST_SET_ASIDE = 3


class WaitingRoom:
    """Lets sequences in as slots fall free."""

    def __init__(self, memory: PartitionedMemory) -> None:
        #: Times that a sequence lost its slot to a more urgent one.
        self.set_aside = 0
        self._memory = memory
        self._heap: list[tuple[tuple[int, int], int, int, Attempt, Sequence]] = []
        self._entries = itertools.count()

    def put(self, attempt: Attempt, sequence: Sequence) -> None:
        """Let a sequence wait for its slots."""
        heapq.heappush(self._heap, (attempt.order, sequence.choice, next(self._entries), attempt, sequence))

    def fill_slots(self, now: float) -> None:
        """Give slots to whoever comes next, as long as there are any (monotonic seconds)."""
        while self._heap:
            *_, attempt, sequence = self._heap[0]
            if attempt.ended or sequence.finish_reason is not None:
                heapq.heappop(self._heap)  # ended while it waited
                continue
            if not self._may_join(attempt) or not self._make_room(attempt, sequence):
                return
            heapq.heappop(self._heap)
            attempt.deadline = min(attempt.deadline, now + attempt.timeout_seconds)
            self._memory.assign(attempt, sequence)

    def _may_join(self, attempt: Attempt) -> bool:
        """Whether the attempt may run beside those that run: an exclusive one shares with nobody."""
        return all(
            other is attempt or not (attempt.exclusive or other.exclusive) for other, _ in self._memory.running.values()
        )

    def _make_room(self, attempt: Attempt, sequence: Sequence) -> bool:
        """See to it that the sequence finds its slots, at less urgent attempts' cost if need be."""
        needed, freed = sequence.width, self._memory.room
        victims: list[tuple[Attempt, Sequence]] = []
        for victim, other in sorted(self._memory.running.values(), key=lambda item: item[0].order, reverse=True):
            if freed >= needed:
                break
            if other.guided is None and victim.priority > attempt.priority and victim.set_aside < MOST_SET_ASIDE:
                victims.append((victim, other))
                freed += other.width
        if freed < needed:
            return False
        for victim, other in victims:
            victim.set_aside += 1
            self.set_aside += 1
            self._memory.set_aside(other)
            self.put(victim, other)
        return True
