"""A reader sees each event once and in order, however the channel and the stream interleave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_llama.ledger.cursor import EventCursor
from celery_llama.protocol.events import AnyEvent, Finished, Token


def token(seq: int, attempt: int = 1) -> Token:
    return Token(attempt=attempt, seq=seq, type="token", text=f"{seq} ")


def finished(seq: int, attempt: int = 1) -> Finished:
    return Finished(attempt=attempt, seq=seq, type="finished", status="completed", finish_reason=["stop"])


def test_events_in_order_pass() -> None:
    cursor = EventCursor()

    assert [cursor.feed(token(seq)) for seq in (1, 2, 3)] == [True, True, True]
    assert cursor.seq == 3
    assert not cursor.gap


def test_an_event_that_was_seen_is_not_shown_again() -> None:
    cursor = EventCursor()
    cursor.feed(token(1))

    assert not cursor.feed(token(1))
    assert not cursor.gap


def test_a_missing_event_is_a_gap_until_it_has_been_replayed() -> None:
    cursor = EventCursor()
    cursor.feed(token(1))

    assert not cursor.feed(token(3))
    assert cursor.gap
    assert cursor.position == "(1-1"

    assert cursor.feed(token(2))
    assert cursor.feed(token(3))
    assert not cursor.gap


def test_a_reader_that_resumes_sees_only_what_comes_after() -> None:
    cursor = EventCursor(after=2)

    assert [cursor.feed(token(seq)) for seq in (1, 2, 3)] == [False, False, True]


def test_the_next_attempt_goes_on_where_the_last_one_stopped() -> None:
    cursor = EventCursor()

    assert cursor.feed(token(1, attempt=1))
    assert cursor.feed(token(2, attempt=3))
    assert cursor.position == "(3-2"
    assert not cursor.feed(token(3, attempt=1))


def test_nothing_passes_after_the_terminal_event() -> None:
    cursor = EventCursor()
    cursor.feed(finished(1))

    assert cursor.done
    assert not cursor.feed(token(2))


def test_a_reader_that_resumes_after_the_end_is_done() -> None:
    for after in (2, 3, 99):
        cursor = EventCursor(after)
        assert not cursor.feed(token(1))
        assert not cursor.feed(finished(2))
        assert cursor.done


def test_a_terminal_event_behind_a_gap_does_not_end_the_reading() -> None:
    cursor = EventCursor()

    assert not cursor.feed(finished(2))
    assert not cursor.done
    assert cursor.feed(token(1))
    assert cursor.feed(finished(2))
    assert cursor.done


def test_a_stream_that_was_begun_anew_is_noticed() -> None:
    cursor = EventCursor()
    cursor.feed(token(1))
    cursor.feed(token(2))

    assert not cursor.feed(token(1, attempt=2))
    assert cursor.restarted


@given(data=st.data(), count=st.integers(1, 12), after=st.integers(0, 14))
def test_any_interleaving_of_channel_and_stream_shows_every_event_once_and_in_order(
    data: st.DataObject, count: int, after: int
) -> None:
    attempts = sorted(data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count)))
    stream: list[AnyEvent] = [token(seq, attempt) for seq, attempt in enumerate(attempts, 1)]
    stream[-1] = finished(count, attempts[-1])
    cursor, shown, live = EventCursor(after), [], 0
    while not cursor.done:
        lost, replay = data.draw(st.tuples(st.integers(0, 2), st.booleans()))
        live += lost  # the channel loses messages, but never reorders them
        if live < count and not replay:
            shown += [stream[live]] * cursor.feed(stream[live])
            live += 1
        else:  # the stream may be read at any moment, and holds at least what was published
            held = data.draw(st.integers(min(live, count), count)) if live < count else count
            shown += [event for event in stream[:held] if cursor.feed(event)]
            assert not cursor.gap
    assert shown == stream[after:]
