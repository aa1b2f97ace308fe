"""The partitioned memory: who has which slot, and what the cells of every slot hold. Pure; on the engine thread.

Each slot has its own cells, so a sequence that has a slot never runs out before its slot is full. Slots that nobody
uses keep what they hold, as prefixes for later jobs, until their turn comes; the one freed longest ago goes first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from celery_llama_worker.engine.plan import Adapters, CellOperation, Copy, Drop, Limits, Load, Save, Trim
from celery_llama_worker.engine.scheduling.order import side_by_side
from celery_llama_worker.engine.scheduling.prefix_cache import Chunk, PrefixCache
from celery_llama_worker.engine.scheduling.prefix_store import PrefixStore
from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence


class PartitionedMemory:
    """Gives out slots, and the beginnings of prompts that slots hold already."""

    def __init__(self, limits: Limits, *, chunk_tokens: int, share_prefixes: bool, store_bytes: int = 0) -> None:
        #: Sequences by slot; a guided one and its negative prompt's are two.
        self.running: dict[int, tuple[Attempt, Sequence]] = {}
        self.copied_tokens = 0
        self._chunk_tokens = chunk_tokens
        self._share = share_prefixes and limits.can_trim
        self._movable = limits.can_trim and limits.spare_slots > 0
        self._slots = limits.slots
        self._cache = PrefixCache(chunk_tokens)
        self._store = PrefixStore(store_bytes // limits.cell_bytes if self._share else 0)
        #: Slots without a sequence, the one freed longest ago first.
        self._free: dict[int, None] = dict.fromkeys(range(limits.slots + limits.spare_slots))
        self._operations: list[CellOperation] = []
        self._keys = itertools.count()

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence could get its slots."""
        return self.room >= sequence.width

    def would_fit(self, sequence: Sequence, without: Iterable[Sequence]) -> bool:
        """Whether it could, if these had none."""
        return self.room + sum(other.width for other in without) >= sequence.width

    def can_grow(self, _tokens: int) -> bool:
        """Whether those that run can get this many cells more; here each has its own."""
        return True

    @property
    def room(self) -> int:
        """How many slots could be given out."""
        return self._slots - len(self.running)

    def take_operations(self) -> list[CellOperation]:
        """What has to be done to the cells before the next call."""
        operations, self._operations = self._operations, []
        return operations

    def next_tokens(self, sequence: Sequence) -> int:
        """How many tokens the sequence's next piece has."""
        return len(sequence.piece(self._chunk_tokens).tokens)

    # ---- slots come and go

    def assign(self, attempt: Attempt, sequence: Sequence) -> None:
        """Give the sequence a free slot, the one that holds most of its prompt; likewise its negative prompt's."""
        for part in sequence.parts:
            self._assign(attempt, part)

    def release(self, sequence: Sequence) -> None:
        """Take the slot back; its cells stay until somebody else gets it."""
        for part in sequence.parts:
            if part.slot is not None:
                self._vacate(part)
            if part.saved is not None:
                self._operations.append(Drop(part.saved))
                part.saved = None

    def set_aside(self, sequence: Sequence) -> None:
        """Take the slot for somebody more urgent; the sequence will go on where it was.

        Cells of whole chunks are computed again, which gives the same bits; those that were decoded would not, so they
        are kept in host memory.
        """
        for part in sequence.parts:
            assert part.slot is not None
            if sequence.decodes:
                part.saved = next(self._keys)
                self._operations.append(Save(part.slot, part.saved))
            else:
                part.read = 0
            self._vacate(part)

    def _assign(self, attempt: Attempt, sequence: Sequence) -> None:
        slot, kept = self._choose(sequence, share=self._share and not attempt.exclusive and sequence.saved is None)
        del self._free[slot]
        if self._cache.held(slot) > kept:
            self._store_prefix(slot)
        self._cache.enter(slot, sequence.tokens, kept, sequence.adapters)
        self._operations.append(Trim(slot, kept))
        if sequence.saved is None:
            sequence.read = sequence.cached = kept
        else:
            self._operations.append(Load(slot, sequence.saved))
            sequence.saved = None
        sequence.slot = slot
        self.running[slot] = attempt, sequence

    def _vacate(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        del self.running[sequence.slot]
        self._free[sequence.slot] = None
        sequence.slot = None

    def _choose(self, sequence: Sequence, *, share: bool) -> tuple[int, int]:
        """A free slot, and how many of its cells the sequence can keep."""
        if share:
            match = self._cache.match(sequence.known, sequence.adapters)
            fitting = match.slots & self._free.keys()
            if match.tokens and fitting:
                return min(fitting, key=lambda slot: (self._cache.held(slot), slot)), match.tokens
        empty = sorted(slot for slot in self._free if not self._cache.held(slot))
        return (empty[0] if empty else next(iter(self._free))), 0

    # ---- cells

    def computed(self, attempt: Attempt, sequence: Sequence, tokens: Chunk) -> None:
        """The sequence's slot has got cells for these tokens."""
        assert sequence.slot is not None
        start = sequence.read
        sequence.read += len(tokens)
        whole = len(tokens) == self._chunk_tokens and self._cache.held(sequence.slot) == start
        if whole and self._share and not attempt.exclusive and self._may_enter(sequence, tokens):
            self._cache.extend(sequence.slot, tokens, sequence.adapters)

    def _may_enter(self, _sequence: Sequence, _chunk: Chunk) -> bool:
        """Whether others may find this chunk in its slot; here it is of no account who else has computed it."""
        return True

    def lose_cells(self) -> None:
        """The context is new and empty: everybody reads from the start again."""
        self._cache.clear()
        # What was to be done to them is moot; what is kept in host memory is still there.
        self._operations = [operation for operation in self._operations if isinstance(operation, Drop)]
        self._operations += [Drop(holder) for holder in self._store.clear()]
        for _, sequence in self.running.values():
            sequence.read = sequence.cached = 0

    # ---- sharing

    def must_wait(self, attempt: Attempt, sequence: Sequence, claimed: set[object]) -> bool:
        """Copy what a neighbour has read already; True if a neighbour is about to read what the sequence needs next.

        `claimed` collects what the sequences asked before are going to read in this step.
        """
        if not self._share or attempt.exclusive:
            return False
        assert sequence.slot is not None
        match = self._cache.match(sequence.known, sequence.adapters)
        if match.tokens < sequence.fork_at:
            self._fork(attempt, sequence)
        if match.tokens > sequence.read:
            following = attempt.shared_piece(sequence, match.tokens, self._chunk_tokens)
            if any(self._reads_next(slot, match.tokens, following, attempt) for slot in match.slots):
                return True  # it goes on reading the same text: copy once, when it has read all of it
            self._copy(max(match.slots), sequence, match.tokens)
        piece = attempt.shared_piece(sequence, sequence.read, self._chunk_tokens)
        if piece is None:
            return False
        key = (self._cache.position(sequence.slot), sequence.adapters, piece)
        if key in claimed:
            return True
        claimed.add(key)
        return False

    def _fork(self, attempt: Attempt, sequence: Sequence) -> None:
        """Copy all that a choice has in common with its siblings as soon as one of them has read it."""
        common = sequence.fork_at
        whole = common - common % self._chunk_tokens
        for other in (part for choice in attempt.sequences for part in choice.parts):
            if (
                sequence.read < common <= other.read
                and other.slot is not None
                and self._cache.held(other.slot) >= whole  # else the cells are its own, and counted as such
                and other.tokens[:common] == sequence.tokens[:common]
            ):
                self._copy(other.slot, sequence, common)

    def _reads_next(self, slot: int, read: int, piece: object, follower: Attempt) -> bool:
        if piece is None or slot not in self.running:
            return False
        attempt, leader = self.running[slot]
        if attempt.order > follower.order:
            return False  # others may keep it from reading; the more urgent one takes the lead
        next_piece = attempt.shared_piece(leader, read, self._chunk_tokens)
        return leader.read == read and leader.reads and next_piece == piece

    def _copy(self, source: int, sequence: Sequence, tokens: int) -> None:
        assert sequence.slot is not None
        if source >= 0:
            self._operations.append(Copy(source, sequence.slot, tokens))
        else:  # nobody but the store has it
            self._store.touch(source)
            load = Load(sequence.slot, source, keep=True)
            self._operations += [Trim(sequence.slot, 0), load, Trim(sequence.slot, tokens)]
        self._cache.enter(sequence.slot, sequence.tokens, tokens, sequence.adapters)
        self.copied_tokens += tokens - sequence.read
        sequence.cached += tokens - sequence.read
        sequence.read = tokens

    def _store_prefix(self, slot: int) -> None:
        """Keep in host memory what a slot holds before somebody else gets it, unless it is to be had elsewhere."""
        held = self._cache.held(slot)
        if not self._cache.alone(slot):
            return
        gone = self._store.make_room(held)
        if gone is None:
            return
        for holder in gone:
            self._cache.forget(holder)
            self._operations.append(Drop(holder))
        holder = -1 - next(self._keys)
        self._operations += [Trim(slot, held), Save(slot, holder)]
        self._cache.hand_over(slot, holder)
        self._store.add(holder, held)

    # ---- order

    def arrange(self) -> None:
        """Bring the decoding sequences of each call into slots that follow each other."""
        if not self._movable:
            return
        groups: dict[Adapters, set[int]] = {}
        for slot, (_, sequence) in self.running.items():
            if sequence.decodes:
                groups.setdefault(sequence.adapters, set()).add(slot)
        for move in side_by_side(groups.values(), self._free, len(self.running) + len(self._free), self._cache.held):
            self._move(move.source, move.target)

    def _move(self, source: int, target: int) -> None:
        attempt, sequence = self.running.pop(source)
        del self._free[target]
        self._store_prefix(target)
        self._free[source] = None  # its cells stay, and what is known of them
        self._operations.append(Copy(source, target, sequence.read))
        self._cache.enter(target, sequence.tokens, self._cache.held(source), sequence.adapters)
        sequence.slot = target
        self.running[target] = attempt, sequence
