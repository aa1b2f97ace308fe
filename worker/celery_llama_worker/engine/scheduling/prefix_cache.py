"""Which slots hold which beginnings of prompts, in whole chunks. Pure; owned by the scheduler, on the engine thread.

A tree for each set of adapters: each node is one chunk after its parent's, and knows the slots whose cells hold it.
Only cells that were computed in whole chunks are entered, and only whole chunks are given out, so that a prompt's
rounding does not depend on who else was there (docs/architecture.md, "Reproducible output").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from celery_llama_worker.engine.plan import Adapters

Chunk = tuple[int, ...]
#: The adapters are part of every step down, so the sets have no node in common but the root.
_Step = tuple[Adapters, Chunk]


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None = None
    step: _Step = ((), ())
    depth: int = 0
    children: dict[_Step, _Node] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Match:
    """The longest beginning of a prompt that some slots hold."""

    tokens: int
    slots: frozenset[int]


class PrefixCache:
    """Matches prompts against the cells of all slots, in use or not."""

    def __init__(self, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        #: How many chunks are held, each counted once.
        self.chunks = 0
        self._root = _Node()
        #: The deepest node of each slot; its ancestors hold the slot too.
        self._tips: dict[int, _Node] = {}

    def match(self, tokens: Sequence[int], adapters: Adapters = ()) -> Match:
        """The longest whole-chunk beginning of `tokens` that any slot holds, short of the last token.

        The last token is never matched: its logits are wanted, so it has to be computed.
        """
        node = self._root
        for chunk in self._chunks(tokens, len(tokens) - 1):
            child = node.children.get((adapters, chunk))
            if child is None:
                break
            node = child
        return Match(node.depth * self.chunk_tokens, frozenset(node.slots))

    def held(self, slot: int) -> int:
        """Tokens that are known of a slot's cells."""
        return self._tips[slot].depth * self.chunk_tokens if slot in self._tips else 0

    def chunks_of(self, slots: Iterable[int]) -> int:
        """How many chunks these slots hold between them, each counted once."""
        nodes: set[_Node] = set()
        for slot in slots:
            node: _Node | None = self._tips.get(slot)
            while node is not None and node is not self._root and node not in nodes:
                nodes.add(node)
                node = node.parent
        return len(nodes)

    def position(self, slot: int) -> object:
        """Equal for two slots if and only if their cells hold the same chunks."""
        return self._tips.get(slot, self._root)

    def enter(self, slot: int, tokens: Sequence[int], read: int, adapters: Adapters = ()) -> None:
        """The slot's cells hold the first `read` of `tokens`, computed with these adapters, and nothing else."""
        self.forget(slot)
        node = self._root
        for chunk in self._chunks(tokens, read):
            node = self._descend(node, (adapters, chunk), slot)
        if node is not self._root:
            self._tips[slot] = node

    def extend(self, slot: int, chunk: Chunk, adapters: Adapters = ()) -> None:
        """The slot's cells hold one more whole chunk."""
        self._tips[slot] = self._descend(self._tips.get(slot, self._root), (adapters, chunk), slot)

    def knows(self, slot: int, chunk: Chunk, adapters: Adapters = ()) -> bool:
        """Whether some slot holds this chunk behind what the slot holds."""
        return (adapters, chunk) in self._tips.get(slot, self._root).children

    def hand_over(self, slot: int, holder: int) -> None:
        """Another holder has what the slot has; the slot is about to change."""
        node: _Node | None = self._tips[slot]
        self._tips[holder] = self._tips[slot]
        while node is not None and node is not self._root:
            node.slots.add(holder)
            node = node.parent
        self.forget(slot)

    def alone(self, slot: int) -> bool:
        """Whether nobody else holds all that the slot holds."""
        return slot in self._tips and len(self._tips[slot].slots) == 1

    def forget(self, slot: int) -> None:
        """The slot's cells are about to change."""
        node: _Node | None = self._tips.pop(slot, None)
        while node is not None and node.parent is not None:
            node.slots.discard(slot)
            if not node.slots and node.parent.children.pop(node.step, None) is not None:
                # No slot holds this chunk, so none holds a chunk below it: the whole branch can go.
                self.chunks -= 1
            node = node.parent

    def clear(self) -> None:
        """All cells are lost."""
        self._root = _Node()
        self._tips.clear()
        self.chunks = 0

    def _descend(self, node: _Node, step: _Step, slot: int) -> _Node:
        child = node.children.get(step)
        if child is None:
            child = node.children[step] = _Node(node, step, node.depth + 1)
            self.chunks += 1
        child.slots.add(slot)
        return child

    def _chunks(self, tokens: Sequence[int], limit: int) -> Iterator[Chunk]:
        size = self.chunk_tokens
        for start in range(0, limit // size * size, size):
            yield tuple(tokens[start : start + size])
