"""What readers are told: numbered events without gaps, whose texts add up to the result."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.events import Failed, Finished, Progress, Started, Token, parse_event
from celery_llama.protocol.results import FinishReason, JobError, Result
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.outputs import Began, Departed, Ended, EndReason, Output, Read, Text
from celery_llama_worker.engine.plan import Alternative, Sampled

BEGAN = Began("job", 1, 4)


def transcript(*, choices: int = 1, attempt: int = 1, logprobs: bool = False, prompt_tokens: int = 9) -> Transcript:
    one = Transcript("job", attempt, attempt, "worker-1", "tiny", lambda token: bytes([token]), queued_seconds=0.25)
    one.describe(choices=choices, prompt_tokens=prompt_tokens, seed=7, reproducible=True, logprobs=logprobs)
    return one


def text(shown: str, *tokens: int, choice: int = 0, reason: FinishReason | None = None) -> Text:
    return Text("job", 1, choice, shown, [Sampled(token) for token in tokens], reason)


def written(one: Transcript, *outputs: Output) -> list[Any]:
    """The events of these outputs, as a reader sees them."""
    return [parse_event(event) for _, event in one.write(outputs).events]


def end(one: Transcript, reason: EndReason = "done", error: JobError | None = None) -> tuple[Any, Result]:
    """The terminal event and the result."""
    _, event, result = one.end(Ended("job", one.attempt, reason, error))
    return parse_event(event), result


# events


def test_events_are_numbered_without_gaps_over_all_writes() -> None:
    one = transcript()
    numbers = [number for number, _ in one.write([BEGAN, text("a", 97)]).events]
    numbers += [number for number, _ in one.write([Read("job", 1, 512), text("b", 98)]).events]
    number, event, _ = one.end(Ended("job", 1, "done"))

    assert [*numbers, number] == [1, 2, 3, 4, 5]
    assert parse_event(event).seq == 5


def test_the_first_event_says_who_works_on_what() -> None:
    (started,) = written(transcript(), BEGAN)

    assert started == Started(
        attempt=1,
        seq=1,
        type="started",
        worker="worker-1",
        model="tiny",
        prompt_tokens=9,
        cached_tokens=4,
        queued_s=0.25,
    )


def test_progress_says_how_much_of_how_much() -> None:
    (progress,) = written(transcript(prompt_tokens=2000), Read("job", 1, 512))

    assert progress == Progress(attempt=1, seq=1, type="progress", read_tokens=512, prompt_tokens=2000)


def test_tokens_of_a_choice_that_follow_each_other_share_an_event() -> None:
    events = written(transcript(choices=2), text("a", 97), text("bc", 98, 99), text("x", 120, choice=1), text("d", 100))

    assert [(event.choice, event.text, event.tokens) for event in events] == [
        (0, "abc", [97, 98, 99]),
        (1, "x", [120]),
        (0, "d", [100]),
    ]


def test_tokens_on_either_side_of_another_event_do_not_share_one() -> None:
    events = written(transcript(), text("a", 97), Read("job", 1, 512), text("b", 98))

    assert [event.type for event in events] == ["token", "progress", "token"]


def test_a_choices_end_is_in_its_last_event_or_an_event_of_its_own_and_is_said_once() -> None:
    one = transcript(choices=2)

    events = written(one, text("a", 97), text("b", 98, reason="length"), text("", choice=1, reason="stop"))

    assert [(event.choice, event.text, event.finish_reason) for event in events] == [
        (0, "ab", "length"),
        (1, "", "stop"),
    ]
    assert written(one, text("", reason="length"), text("", choice=1, reason="stop")) == []
    assert end(one)[0].finish_reason == ["length", "stop"]


def test_an_attempt_that_goes_on_knows_which_choices_are_complete() -> None:
    first = transcript(choices=2)
    said = delivered(written(first, text("a", 97), text("", 98, choice=1, reason="stop")))
    second = transcript(choices=2, attempt=2)
    second.resume(said)

    assert {choice: one.finish_reason for choice, one in said.choices.items()} == {0: None, 1: "stop"}
    assert written(second, text("", choice=1, reason="stop")) == []
    assert [event.finish_reason for event in written(second, text("", reason="stop"))] == ["stop"]


def test_tokens_without_text_are_told() -> None:
    (event,) = written(transcript(), text("", 115, 116, reason="stop"))

    assert (event.text, event.tokens) == ("", [115, 116])


def test_events_are_compact_json_in_plain_characters() -> None:
    _, event = transcript().write([text("日本 \x00\u2028", 97)]).events[0]

    assert event == '{"v":1,"attempt":1,"seq":1,"type":"token","choice":0,"text":"日本 \\u0000\u2028","tokens":[97]}'


# the end


def test_a_text_that_stopped_by_itself_is_completed() -> None:
    one = transcript()
    written(one, BEGAN, text("abc", 97, 98, 99, reason="stop"))
    event, result = end(one)

    assert isinstance(event, Finished)
    assert (result.status, result.finish_reason, result.text) == ("completed", "stop", "abc")
    assert (event.status, event.finish_reason, event.usage) == ("completed", ["stop"], result.usage)
    assert result.usage.model_dump() == {"prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4}
    assert (result.model, result.seed, result.reproducible, result.attempts, result.id) == ("tiny", 7, True, 1, "job")
    assert result.error is None


@pytest.mark.parametrize(
    ("reasons", "ended", "status"),
    [
        (["stop", "stop"], "done", "completed"),
        (["stop", "length"], "done", "incomplete"),
        (["length", "length"], "done", "incomplete"),
        (["timeout", "stop"], "timeout", "incomplete"),
        (["cancelled", "stop"], "cancelled", "cancelled"),
        ([None, None], "failed", "failed"),
    ],
)
def test_the_status_is_that_of_the_choice_that_got_least_far(
    reasons: list[FinishReason | None], ended: EndReason, status: str
) -> None:
    one = transcript(choices=2)
    written(one, *(text("a", 97, choice=n, reason=reason) for n, reason in enumerate(reasons)))
    _, result = end(one, ended, JobError(code="engine_error", message="it broke") if ended == "failed" else None)

    assert result.status == status
    assert [choice.finish_reason for choice in result.choices] == reasons


def test_a_failed_job_keeps_what_it_had_and_says_why() -> None:
    one = transcript()
    written(one, BEGAN, text("abc", 97, 98, 99))
    error = JobError(code="engine_error", message="it broke")
    event, result = end(one, "failed", error)

    assert event == Failed(attempt=1, seq=3, type="failed", error=error)
    assert (result.text, result.finish_reason, result.error) == ("abc", None, error)


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_a_job_that_never_reached_the_engine_says_how_it_ended(reason: EndReason) -> None:
    event, result = end(transcript(choices=2), reason)

    assert event.finish_reason == [reason, reason]
    assert result.usage.completion_tokens == 0


def test_the_timings_are_of_this_attempt() -> None:
    one = transcript()
    one.claimed_at = 0.0
    written(one, BEGAN, text("abc", 97, 98, 99, reason="stop"))
    _, result = end(one)
    timings = result.timings

    assert timings.queued_s == 0.25
    assert timings.first_token_s is not None
    assert timings.total_s is not None
    assert 0 < timings.first_token_s <= timings.total_s


def test_a_job_without_a_token_has_no_time_of_its_first() -> None:
    assert end(transcript(), "cancelled")[1].timings.first_token_s is None


def test_the_rate_counts_the_tokens_and_the_time_after_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("celery_llama_worker.bookkeeping.transcript.time.monotonic", lambda: now[0])
    one = transcript()

    rates = []
    for count in (2, 3, 5):
        one.write([Text("job", 1, 0, "x" * count, [Sampled(7)] * count, None)])
        rates.append(one.end(Ended("job", 1, "done"))[2].timings.tokens_per_s)
        now[0] += 0.5

    assert rates == [None, 6.0, 8.0]


# log-probabilities


def test_log_probabilities_are_told_with_each_token_and_in_the_result() -> None:
    one = transcript(logprobs=True)
    sampled = Sampled(97, -0.12345678, [Alternative(97, -0.12345678), Alternative(255, -2.5)])
    (event,) = written(one, Text("job", 1, 0, "a", [sampled], "stop"))
    _, result = end(one)

    (entry,) = event.logprobs
    assert (entry.id, entry.token, entry.bytes, entry.logprob) == (97, "a", [97], -0.123457)
    assert [(other.token, other.logprob) for other in entry.top_logprobs] == [("a", -0.123457), ("\ufffd", -2.5)]
    assert result.choices[0].logprobs == [entry]


def test_an_impossible_alternative_is_still_json() -> None:
    one = transcript(logprobs=True)
    sampled = Sampled(97, 0.0, [Alternative(97, 0.0), Alternative(98, float("-inf"))])
    _, event = one.write([Text("job", 1, 0, "a", [sampled], None)]).events[0]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    json.loads(event, parse_constant=refuse)


def test_without_being_asked_for_there_are_no_log_probabilities() -> None:
    one = transcript()
    (event,) = written(one, Text("job", 1, 0, "a", [Sampled(97, -0.5)], "stop"))

    assert event.logprobs is None
    assert end(one)[1].choices[0].logprobs is None


# resuming


def test_a_second_attempt_goes_on_with_numbers_texts_and_counts() -> None:
    first, second = transcript(), transcript(attempt=2)
    events = written(first, BEGAN, text("abc", 97, 98, 99))
    second.resume(delivered(events))
    more = written(second, Began("job", 2, 0), text("de", 100, 101, reason="stop"))
    event, result = end(second)

    assert [(event.attempt, event.seq, event.type) for event in [*events, *more, event]] == [
        (1, 1, "started"),
        (1, 2, "token"),
        (2, 3, "token"),
        (2, 4, "finished"),
    ]
    assert (result.text, result.usage.completion_tokens, result.attempts) == ("abcde", 5, 2)


def test_an_attempt_that_was_killed_before_it_began_leaves_the_start_to_the_next() -> None:
    second = transcript(attempt=2)
    second.resume(delivered([]))

    assert [event.type for event in written(second, Began("job", 2, 0))] == ["started"]


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_text_that_departs_from_what_was_said_is_not_called_reproducible(reproducible: bool) -> None:
    one = transcript(attempt=2)
    one.describe(choices=1, prompt_tokens=9, seed=7, reproducible=reproducible, logprobs=False)

    assert written(one, Departed("job", 2)) == []
    assert end(one)[1].reproducible is False


def test_choices_of_which_nothing_was_delivered_are_still_there() -> None:
    first, second = transcript(choices=3), transcript(choices=3, attempt=2)
    events = written(first, text("x", 120, choice=1))
    second.resume(delivered(events))
    second.describe(choices=3, prompt_tokens=9, seed=7, reproducible=True, logprobs=False)
    _, result = end(second, "cancelled")

    assert [choice.text for choice in result.choices] == ["", "x", ""]


def test_log_probabilities_of_an_earlier_attempt_are_in_the_result() -> None:
    first, second = transcript(logprobs=True), transcript(logprobs=True, attempt=2)
    second.resume(delivered(written(first, Text("job", 1, 0, "a", [Sampled(97, -0.5)], None))))
    written(second, Text("job", 2, 0, "b", [Sampled(98, -0.25)], "stop"))

    logprobs = end(second)[1].choices[0].logprobs
    assert logprobs is not None
    assert [entry.logprob for entry in logprobs] == [-0.5, -0.25]


OUTPUTS = st.lists(
    st.one_of(
        st.builds(text, st.text(max_size=3), st.integers(0, 255), choice=st.integers(0, 2)),
        st.builds(text, st.text(max_size=3), choice=st.integers(0, 2)),
        st.builds(Read, st.just("job"), st.just(1), st.integers(1, 999)),
        st.just(BEGAN),
    ),
    max_size=20,
)


@given(outputs=OUTPUTS, cuts=st.lists(st.integers(0, 20), max_size=6), handed_over_at=st.integers(0, 20))
def test_the_texts_of_the_events_add_up_to_the_result_however_they_were_written(
    outputs: list[Output], cuts: list[int], handed_over_at: int
) -> None:
    one = transcript(choices=3)
    events: list[Any] = []
    edges = sorted({0, *cuts, handed_over_at, len(outputs)})
    for begin, stop in itertools.pairwise(edges):
        if begin == handed_over_at:  # another worker takes over
            one = transcript(choices=3, attempt=2)
            one.resume(delivered(events))
        events += written(one, *outputs[begin:stop])
    terminal, result = end(one)

    assert [event.seq for event in [*events, terminal]] == list(range(1, len(events) + 2))
    assert sum(isinstance(event, Started) for event in events) == (BEGAN in outputs)
    for index, choice in enumerate(result.choices):
        said: Sequence[Token] = [event for event in events if isinstance(event, Token) and event.choice == index]
        assert "".join(event.text for event in said) == choice.text
        meant = "".join(output.text for output in outputs if isinstance(output, Text) and output.choice == index)
        assert choice.text == meant
    assert result.usage.completion_tokens == sum(len(event.tokens) for event in events if isinstance(event, Token))
