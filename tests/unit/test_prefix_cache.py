"""Which beginnings of prompts are known to be in which slots: whole chunks, never the last token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_llama_worker.engine.scheduling.prefix_cache import Match, PrefixCache

TEXT = [1, 2, 3, 4, 5, 6, 7, 8]
NOTHING = Match(0, frozenset())


def known(*entries: tuple[int, list[int], int]) -> PrefixCache:
    """A cache of chunks of two that was told these slots, tokens and numbers of cells."""
    cache = PrefixCache(2)
    for slot, tokens, read in entries:
        cache.enter(slot, tokens, read)
    return cache


def test_an_empty_cache_matches_nothing() -> None:
    assert PrefixCache(2).match(TEXT) == NOTHING


def test_the_longest_beginning_is_matched_with_every_slot_that_holds_it() -> None:
    cache = known((0, TEXT, 6), (1, TEXT, 4), (2, [*TEXT[:4], 9, 9], 6), (3, [9, 9], 2))

    assert cache.match([*TEXT[:4], 7, 7, 7]) == Match(4, frozenset({0, 1, 2}))
    assert cache.match([*TEXT, 9]) == Match(6, frozenset({0}))


def test_only_whole_chunks_are_matched() -> None:
    assert known((0, TEXT, 5)).match(TEXT) == Match(4, frozenset({0}))
    assert known((0, TEXT, 1)).match(TEXT) == NOTHING


def test_the_last_token_is_never_matched_because_its_logits_are_wanted() -> None:
    cache = known((0, TEXT, 8))

    assert cache.match(TEXT[:4]) == Match(2, frozenset({0}))
    assert cache.match(TEXT[:5]) == Match(4, frozenset({0}))
    assert cache.match(TEXT[:1]) == NOTHING
    assert cache.match([]) == NOTHING


def test_a_slot_that_reads_on_holds_one_chunk_more() -> None:
    cache = known((0, TEXT, 2))
    cache.extend(0, (3, 4))
    cache.extend(1, (1, 2))

    assert cache.match(TEXT) == Match(4, frozenset({0}))
    assert (cache.held(0), cache.held(1), cache.held(2)) == (4, 2, 0)


def test_what_was_computed_with_other_adapters_is_not_there() -> None:
    red = (("red", 1.0),)
    cache = known((0, TEXT, 4))
    cache.enter(1, TEXT, 2, red)
    cache.extend(1, (3, 4), red)

    assert cache.match([*TEXT[:4], 9]) == Match(4, frozenset({0}))
    assert cache.match([*TEXT[:4], 9], red) == Match(4, frozenset({1}))
    assert cache.match([*TEXT[:4], 9], (("red", 0.5),)) == NOTHING
    assert cache.chunks == 4


def test_what_is_entered_replaces_what_was_known_of_the_slot() -> None:
    cache = known((0, TEXT, 8), (0, [9, 9, 9], 3))

    assert cache.match(TEXT) == NOTHING
    assert cache.held(0) == 2


def test_a_forgotten_slot_takes_nothing_from_the_others() -> None:
    cache = known((0, TEXT, 8), (1, TEXT, 4))
    cache.forget(0)
    cache.forget(0)

    assert cache.match(TEXT) == Match(4, frozenset({1}))


def test_slots_are_at_the_same_position_if_they_hold_the_same_chunks() -> None:
    cache = known((0, TEXT, 4), (1, [*TEXT[:4], 9], 5), (2, TEXT, 2), (3, [3, 4, 1, 2], 4))

    assert cache.position(0) == cache.position(1)
    assert len({cache.position(slot) for slot in (0, 2, 3, 4)}) == 4
    assert cache.position(4) == cache.position(5)


def test_lost_cells_are_forgotten_all_at_once() -> None:
    cache = known((0, TEXT, 8), (1, TEXT, 4))
    cache.clear()

    assert cache.match(TEXT) == NOTHING
    assert cache.held(0) == 0


TOKENS = st.lists(st.integers(0, 1), max_size=9)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["enter", "extend", "forget"]), st.integers(0, 3), TOKENS), max_size=30),
    asked=TOKENS,
)
def test_a_match_is_what_a_list_of_all_slots_would_say(
    steps: list[tuple[str, int, list[int]]], asked: list[int]
) -> None:
    cache, holds = PrefixCache(2), dict[int, list[int]]()
    for what, slot, tokens in steps:
        match what:
            case "enter":
                cache.enter(slot, tokens, len(tokens))
                holds[slot] = tokens[: len(tokens) // 2 * 2]
            case "extend" if len(tokens) >= 2:
                cache.extend(slot, (tokens[0], tokens[1]))
                holds[slot] = holds.get(slot, []) + tokens[:2]
            case "forget":
                cache.forget(slot)
                holds.pop(slot, None)

    found = cache.match(asked)

    shared = {slot: _shared(asked[:-1], held) for slot, held in holds.items()}
    longest = max(shared.values(), default=0)
    assert found.tokens == longest
    assert found.slots == (frozenset(slot for slot in shared if shared[slot] == longest) if longest else frozenset())
    assert all(cache.held(slot) == len(holds.get(slot, [])) for slot in range(4))


def _shared(asked: list[int], held: list[int]) -> int:
    """How many tokens they have in common at the beginning, in whole chunks."""
    size = 0
    while asked[: size + 2] == held[: size + 2] and len(held) >= size + 2 <= len(asked):
        size += 2
    return size
