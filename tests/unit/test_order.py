"""Sequences that share a call are brought into slots that follow each other."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from celery_llama_worker.engine.scheduling.order import Move, side_by_side


def held_nothing(_slot: int) -> int:
    return 0


def after(moves: Iterable[Move], groups: list[set[int]], free: set[int]) -> list[set[int]]:
    """Where the groups are afterwards; every target is free when its turn comes, and every source is not."""
    groups, free = [set(group) for group in groups], set(free)
    for source, target in moves:
        assert target in free
        assert source not in free
        free = free - {target} | {source}
        groups = [group - {source} | {target} if source in group else group for group in groups]
    return groups


def in_order(group: set[int]) -> bool:
    return sorted(group) == list(range(min(group), min(group) + len(group)))


def test_groups_that_are_in_order_stay_where_they_are() -> None:
    assert side_by_side([{0, 1}, {4, 5, 6}], [2, 3, 7], 8, held_nothing) == []
    assert side_by_side([], [0], 1, held_nothing) == []


def test_a_gap_is_filled_with_the_fewest_moves() -> None:
    assert side_by_side([{0, 1, 3}], [2, 4], 5, held_nothing) == [Move(3, 2)]


def test_of_equally_near_places_the_one_that_holds_least_is_taken() -> None:
    assert side_by_side([{1, 3}], [0, 2, 4], 5, lambda slot: 10 * (slot < 3)) == [Move(1, 4)]


def test_a_group_is_not_brought_into_the_midst_of_another() -> None:
    (move,) = side_by_side([{0, 3}, {1, 2}], [4, 5], 6, held_nothing)

    assert move == Move(0, 4)


def test_two_groups_that_alternate_are_parted() -> None:
    groups = [{0, 2, 4, 6}, {1, 3, 5, 7}]
    moves = side_by_side(groups, [8], 9, held_nothing)

    assert after(moves, groups, {8}) == [{0, 1, 2, 3}, {4, 5, 6, 7}]


@given(st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_group_is_in_order_afterwards_whoever_is_in_the_way(
    slots: int, kinds: int, chance: random.Random
) -> None:
    """Kind 0 are readers, who may be moved and need no order; the last slots are free, at least one."""
    order = list(range(slots + 1))
    chance.shuffle(order)
    running = order[: chance.randint(0, slots)]
    free = order[len(running) :]
    groups: list[set[int]] = [set() for _ in range(kinds)]
    for slot in running:
        if kind := chance.randint(0, kinds):
            groups[kind - 1].add(slot)
    groups = [group for group in groups if group]

    moves = side_by_side(groups, free, slots + 1, lambda slot: slot)

    assert all(in_order(group) for group in after(moves, groups, set(free)))
    assert len(moves) <= 2 * len(running)
