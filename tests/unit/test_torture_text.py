"""Text of many bytes a character goes through events whole, wherever its bytes were cut, stop strings inside or not."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.events import Token, parse_event
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.detokenizer import Detokenizer
from celery_llama_worker.engine.outputs import Text
from celery_llama_worker.engine.plan import Sampled
from celery_llama_worker.engine.scheduling.sequence import Sequence

#: Joined emoji, a flag, skin tones, a keycap; combining marks; right to left; Hangul of parts; escapes of JSON.
PARTS = {
    "family": "👩‍👩‍👧‍👦",
    "flag and keycap": "🏳️‍🌈7️⃣",
    "skin tone": "👍🏽",
    "marks": "e\u0301a\u0323\u0302Z͑ͫ̓ͪ̂",
    "chinese": "中文字",
    "japanese": "がギ㌔",
    "hangul": "\u1112\u1161\u11ab",
    "right to left": "שָׁלוֹם \u202eمرحبا\u202c",  # noqa: RUF001
    "devanagari": "क्षि",
    "outermost": "\u0000\x7f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff",
    "escaped": '"\\\u2028\u2029\n',
}
WHOLE = "".join(PARTS.values())


def sequence(pieces: list[bytes], stop: tuple[str, ...]) -> Sequence:
    return Sequence(0, [0], 1, len(pieces), _Unused(), Detokenizer(stop))


class _Unused:
    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


class _Vocabulary:
    """Token `n` is the n-th piece."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def is_end(self, token: int) -> bool:
        return token < 0


def spoken(pieces: list[bytes], stop: tuple[str, ...] = ()) -> list[Token]:
    """The events of a job whose tokens are these pieces, as a reader gets them; one token a step."""
    vocabulary, subject = _Vocabulary(pieces), sequence(pieces, stop)
    transcript = Transcript("job", 1, attempts=1, worker="w", model="m", piece=vocabulary.piece)
    raw: list[str] = []
    for token in range(len(pieces)):
        text = subject.take(Sampled(token), vocabulary, cells=10_000)
        if text or subject.finish_reason:
            output = Text("job", 1, 0, text, subject.release_held(), subject.finish_reason)
            raw += [event for _, event in transcript.write([output]).events]
        if subject.finish_reason:
            break
    events = [parse_event(event.encode()) for event in raw]
    return [event for event in events if isinstance(event, Token)]


def text_of(events: list[Token]) -> str:
    return "".join(event.text for event in events)


def cut(data: bytes, places: tuple[int, ...]) -> list[bytes]:
    edges = [0, *places, len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_every_cut_into_one_two_or_three_tokens_gives_the_text(part: str) -> None:
    data = part.encode()
    for count in range(3):
        for places in combinations(range(1, len(data)), count):
            events = spoken(cut(data, places))
            assert text_of(events) == part
            assert [token for event in events for token in event.tokens] == list(range(count + 1))


def test_every_cut_of_the_text_in_two_and_its_single_bytes_give_the_text() -> None:
    data = WHOLE.encode()

    assert text_of(spoken([data[at : at + 1] for at in range(len(data))])) == WHOLE
    for place in range(len(data) + 1):
        assert text_of(spoken(cut(data, (place,)))) == WHOLE


@pytest.mark.parametrize("stop", PARTS.values(), ids=PARTS.keys())
def test_every_cut_ends_before_a_stop_string_of_many_bytes(stop: str) -> None:
    before, data = WHOLE.partition(stop)[0], WHOLE.encode()
    for pieces in (
        [data[at : at + 1] for at in range(len(data))],
        *(cut(data, (place,)) for place in range(len(data) + 1)),
        *(cut(data, places) for places in combinations(range(len(before.encode()), len(data), 5), 2)),
    ):
        assert text_of(spoken(pieces, (stop,))) == before


@given(places=st.sets(st.integers(1, len(WHOLE.encode()) - 1)), stops=st.lists(st.sampled_from(WHOLE), max_size=3))
def test_any_cut_gives_what_the_whole_gives(places: set[int], stops: list[str]) -> None:
    pieces = cut(WHOLE.encode(), tuple(sorted(places)))
    first = min((WHOLE.index(stop) for stop in stops), default=len(WHOLE))

    assert text_of(spoken(pieces, tuple(stops))) == WHOLE[:first]


def test_no_event_has_half_a_character() -> None:
    data = WHOLE.encode()

    for event in spoken([data[at : at + 1] for at in range(len(data))]):
        assert "\ufffd" not in event.text
        assert event.text.encode()


def test_whoever_goes_on_after_any_byte_gives_the_rest() -> None:
    """As a worker that takes over from one that died: the delivered tokens are fed again, silently."""
    data = WHOLE.encode()
    pieces = [data[at : at + 1] for at in range(len(data))]
    events = spoken(pieces)
    for count in range(0, len(events), 3):
        said = delivered(events[:count]).choices
        detokenizer = Detokenizer()
        heard = "".join(map(detokenizer.feed, pieces[: len(said[0].tokens) if said else 0]))
        rest = "".join(map(detokenizer.feed, pieces[len(said[0].tokens) if said else 0 :]))
        assert heard == (said[0].text if said else "")
        assert heard + rest + detokenizer.finish() == WHOLE
