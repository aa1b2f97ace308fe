"""What may be shown: whole characters, nothing of a stop string, the same however the text was cut into tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_llama_worker.engine.detokenizer import Detokenizer

TORTURE = "naïve 日本語 👩‍👩‍👧‍👦 e\u0301 🏳️‍🌈 \u200b\u0000 \U0010ffff end"
STOPS = ["END", "\n\n", "</s>", "ab", "abc", "bcd", "👩", "日本"]
ALPHABET = "abcdEND\n</s>👩日本 "


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data cut at the given places."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def shown(pieces: list[bytes], stops: list[str]) -> tuple[str, bool]:
    """All text that was shown, and whether a stop string ended it."""
    detokenizer = Detokenizer(stops)
    text = "".join(map(detokenizer.feed, pieces)) + detokenizer.finish()
    return text, detokenizer.stopped


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop string that begins first."""
    begins = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(begins)], True) if begins else (text, False)


@given(cuts=st.lists(st.integers(0, 200), max_size=60))
def test_a_character_spread_over_tokens_is_shown_whole(cuts: list[int]) -> None:
    detokenizer = Detokenizer()

    texts = [detokenizer.feed(piece) for piece in pieces_of(TORTURE.encode(), cuts)]

    assert "".join(texts) == TORTURE
    assert "\ufffd" not in "".join(texts)


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=20))
def test_invalid_bytes_are_shown_as_replacement_characters_wherever_they_were_cut(data: bytes, cuts: list[int]) -> None:
    assert shown(pieces_of(data, cuts), []) == shown([data], [])


def test_what_can_never_become_a_character_is_replaced() -> None:
    assert shown([b"a\xff", b"\xc3", b"(b"], []) == ("a\ufffd\ufffd(b", False)


@pytest.mark.parametrize("tail", [b"\xe6", b"\xe6\x97", b"\xf0\x9f\x91"])
def test_an_incomplete_character_at_the_end_is_dropped(tail: bytes) -> None:
    assert shown([b"end", tail], []) == ("end", False)


@given(
    text=st.text(ALPHABET, max_size=30),
    stops=st.lists(st.sampled_from(STOPS), max_size=4),
    cuts=st.lists(st.integers(0, 100), max_size=30),
)
def test_the_stream_equals_the_whole_text_cut_at_its_first_stop_string(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    assert shown(pieces_of(text.encode(), cuts), stops) == expected(text, stops)


@given(
    text=st.text(ALPHABET, max_size=30),
    stops=st.lists(st.sampled_from(STOPS), max_size=4),
    cuts=st.lists(st.integers(0, 100), max_size=30),
    delivered=st.integers(0, 30),
)
def test_feeding_the_delivered_tokens_again_resumes_where_the_text_was(
    text: str, stops: list[str], cuts: list[int], delivered: int
) -> None:
    pieces = pieces_of(text.encode(), cuts)
    first, second = Detokenizer(stops), Detokenizer(stops)

    before = [first.feed(piece) for piece in pieces[:delivered]]
    again = [second.feed(piece) for piece in pieces[:delivered]]
    rest = [detokenizer.feed(piece) for piece in pieces[delivered:] for detokenizer in (first, second)]

    assert before == again
    assert rest[::2] == rest[1::2]
    assert first.finish() == second.finish()


def test_text_that_may_begin_a_stop_string_is_held_back_and_no_more() -> None:
    detokenizer = Detokenizer(["STOP"])

    assert [detokenizer.feed(piece) for piece in (b"one S", b"T", b"A", b" ST")] == ["one ", "", "STA", " "]


def test_held_text_is_shown_when_the_generation_ends_by_length() -> None:
    assert shown([b"almost STO"], ["STOP"]) == ("almost STO", False)


def test_a_stop_string_that_was_held_for_a_longer_one_still_counts_at_the_end() -> None:
    assert shown([b"xab"], ["abc", "b"]) == ("xa", True)


def test_nothing_is_shown_after_a_stop_string() -> None:
    detokenizer = Detokenizer(["."])

    assert [detokenizer.feed(piece) for piece in (b"a.b", b"c")] == ["a", ""]
    assert detokenizer.stopped
    assert detokenizer.finish() == ""
