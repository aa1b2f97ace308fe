"""One text: what it computes next, what it takes in, when it ends, and who goes first."""

from __future__ import annotations

import pytest

from celery_llama_worker.engine.plan import Piece, Sampled
from tests.fakes import FakeSampler
from tests.stepping import VOCABULARY, attempt, letters, sequence

END = 250


def test_a_prompt_is_cut_at_multiples_of_the_chunk_and_sampled_at_its_end() -> None:
    sampler = FakeSampler()
    text = sequence([1, 2, 3, 4, 5, 6, 7, 8, 9], sampler=sampler)
    text.slot = 3
    pieces = []
    while text.remaining:
        pieces.append(text.piece(4))
        text.read += len(pieces[-1].tokens)

    assert pieces == [
        Piece(3, 0, [1, 2, 3, 4], None),
        Piece(3, 4, [5, 6, 7, 8], None),
        Piece(3, 8, [9], sampler),
    ]


@pytest.mark.parametrize("length", [1, 3, 4])
def test_a_short_prompt_is_one_piece(length: int) -> None:
    text = sequence([5] * length)
    text.slot = 0

    assert text.piece(4) == Piece(0, 0, [5] * length, text.sampler)


def test_after_the_prompt_each_piece_is_one_token() -> None:
    text = sequence([1, 2, 3, 4, 5])
    text.slot, text.read = 0, 5
    text.take(Sampled(6), VOCABULARY, 64)

    assert text.piece(4) == Piece(0, 5, [6], text.sampler)
    assert (text.remaining, text.generated_tokens) == (1, 1)


def test_what_was_generated_before_counts_against_max_tokens() -> None:
    text = sequence([1, 2, *letters("ab")], max_tokens=3)
    text.prompt_tokens = 2

    assert text.take(Sampled(2), VOCABULARY, 64) == "c"
    assert text.finish_reason == "length"


def test_a_text_ends_when_prompt_and_output_fill_the_slot() -> None:
    text = sequence([1, 2], max_tokens=100)
    taken = 0
    while text.finish_reason is None:
        text.take(Sampled(1), VOCABULARY, 8)
        taken += 1

    assert (taken, text.finish_reason) == (6, "length")


def test_an_end_token_that_is_also_the_last_allowed_one_is_a_stop() -> None:
    text = sequence([1], max_tokens=1)

    assert text.take(Sampled(END), VOCABULARY, 64) == ""
    assert (text.finish_reason, text.generated_tokens) == ("stop", 0)


def test_tokens_whose_text_is_held_back_go_out_with_the_next_text() -> None:
    text = sequence([1], stop=["bcd"])
    shown = []
    for token in letters("abcx"):
        released = text.take(Sampled(token), VOCABULARY, 64)
        shown.append((released, [sampled.token for sampled in text.release_held()] if released else []))

    assert shown == [("a", letters("a")), ("", []), ("", []), ("bcx", letters("bcx"))]


def test_half_a_character_is_held_back_until_it_is_whole() -> None:
    text = sequence([1])

    assert [text.take(Sampled(token), VOCABULARY, 64) for token in (0, 24, 25, 1)] == ["a", "", "é", "b"]


def test_it_is_suspect_until_it_has_got_past_where_its_call_failed() -> None:
    text = sequence([1] * 9)
    text.suspect_until = 8
    suspect = []
    for text.read in (0, 4, 8):
        suspect.append(text.suspect)

    assert suspect == [True, True, False]


def test_the_more_urgent_attempt_goes_first_and_among_equals_the_earlier() -> None:
    late, early, urgent = (
        attempt(name, sequence([1]), priority=number) for name, number in zip("abc", (9, 5, 0), strict=True)
    )
    equal = attempt("d", sequence([1]), priority=5)

    assert sorted([late, equal, urgent, early], key=lambda one: one.order) == [urgent, early, equal, late]


def test_a_choice_that_has_ended_is_not_unfinished() -> None:
    done, going = sequence([1]), sequence([1], choice=1)
    done.finish_reason = "stop"

    assert attempt("a", done, going).unfinished == [going]
