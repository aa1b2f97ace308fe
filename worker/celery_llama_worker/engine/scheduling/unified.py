"""The unified memory: all cells are one pool; slots share the cells of a common beginning. Pure; on the engine thread.

A job may be as long as the whole pool, and nothing is set apart for what it may yet say. So cells can run short at any
step: then kept prefixes go first, and then `WaitingRoom.relieve` sets sequences aside. Nobody's job is ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from celery_llama_worker.engine.plan import Limits, Trim
from celery_llama_worker.engine.scheduling.memory import PartitionedMemory
from celery_llama_worker.engine.scheduling.prefix_cache import Chunk
from celery_llama_worker.engine.scheduling.sequence import Sequence


class UnifiedMemory(PartitionedMemory):
    """Gives out slots as long as there are cells for the prompt, and knows how many cells are left."""

    def __init__(self, limits: Limits, *, chunk_tokens: int, share_prefixes: bool) -> None:
        super().__init__(limits, chunk_tokens=chunk_tokens, share_prefixes=share_prefixes)
        self._cells = limits.cells_per_slot
        # A gap between slot numbers costs nothing here.
        self._movable = False

    def fits(self, sequence: Sequence) -> bool:
        """Whether there are slots, and cells for what has to be read and a chunk of output."""
        if not super().fits(sequence):
            return False
        if not self.running:
            # Alone it always fits: what it needs beyond the pool was refused when the job was admitted. But the cells
            # that it brings back are there at once, before any call, and kept prefixes may be in their place.
            return self.can_grow(sum(part.read for part in sequence.parts if part.saved is not None))
        needed = -1
        while needed != (now := self._needed(sequence)):
            needed = now
            if not self.can_grow(needed + self._growing()):
                return False
            # Kept prefixes may have made room, and among them what the sequence would have found: so ask once more.
        return True

    def would_fit(self, sequence: Sequence, without: Iterable[Sequence]) -> bool:
        """Whether there would be slots and cells, if these had none."""
        gone = {part.slot for other in without for part in other.parts}
        staying = {slot: other for slot, (_, other) in self.running.items() if slot not in gone}
        if not staying:
            return True
        own = sum(other.read - self._cache.held(slot) + other.remaining for slot, other in staying.items())
        cells = self._cache.chunks_of(staying) * self._chunk_tokens + own + self._needed(sequence, staying.keys())
        return self._slots - len(staying) >= sequence.width and cells <= self._cells

    def can_grow(self, tokens: int) -> bool:
        """Whether this many cells are free; lets kept prefixes go if that helps, the one freed longest ago first."""
        for slot in list(self._free):
            if self._used() + tokens <= self._cells:
                return True
            if self._cache.held(slot):
                self._cache.forget(slot)
                self._operations.append(Trim(slot, 0))
        return self._used() + tokens <= self._cells

    def _needed(self, sequence: Sequence, holders: Collection[int] | None = None) -> int:
        """Cells for what has to be read and a chunk of output; only these holders' cells count as found, if given."""
        needed = 0
        for part in sequence.parts:
            needed += len(part.tokens) + self._chunk_tokens
            if self._share and part.saved is None:
                match = self._cache.match(part.tokens, part.adapters)
                needed -= match.tokens if holders is None or match.slots & set(holders) else 0
        return needed

    def _growing(self) -> int:
        """What those that run have yet to read; their output finds room step by step."""
        return sum(sequence.remaining for _, sequence in self.running.values())

    def _used(self) -> int:
        """Cells in use: chunks in the tree are there once, whoever holds them; the rest is each sequence's own."""
        own = sum(sequence.read - self._cache.held(slot) for slot, (_, sequence) in self.running.items())
        return self._cache.chunks * self._chunk_tokens + own

    def _may_enter(self, sequence: Sequence, chunk: Chunk) -> bool:
        """Two that compute the same last chunk have it twice, and the tree counts a chunk once."""
        assert sequence.slot is not None
        return not self._cache.knows(sequence.slot, chunk, sequence.adapters)

    def _vacate(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        # What is no whole chunk is of no use to others, and its cells are.
        self._operations.append(Trim(sequence.slot, self._cache.held(sequence.slot)))
        super()._vacate(sequence)


def make_memory(limits: Limits, *, chunk_tokens: int, share_prefixes: bool, store_bytes: int) -> PartitionedMemory:
    """The policy for the engine's layout of cells."""
    if limits.shared_cells:
        return UnifiedMemory(limits, chunk_tokens=chunk_tokens, share_prefixes=share_prefixes)
    return PartitionedMemory(limits, chunk_tokens=chunk_tokens, share_prefixes=share_prefixes, store_bytes=store_bytes)
