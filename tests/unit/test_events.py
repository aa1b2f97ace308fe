"""Events: what is written can be read, and what cannot be read is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from celery_llama.protocol.events import Failed, Finished, Token, encode_event, parse_event


def test_an_event_is_compact_json_with_its_text_as_it_is() -> None:
    raw = encode_event(2, 7, "token", {"choice": 0, "text": "süß", "tokens": [1]})

    assert raw == '{"v":1,"attempt":2,"seq":7,"type":"token","choice":0,"text":"süß","tokens":[1]}'


def test_an_event_read_back_knows_its_job() -> None:
    event = parse_event(encode_event(1, 2, "token", {"text": "a", "tokens": [5]}), "job-1")

    assert event == Token(job_id="job-1", attempt=1, seq=2, type="token", text="a", tokens=[5])
    assert not event.terminal


def test_finished_and_failed_are_terminal() -> None:
    finished = parse_event(encode_event(1, 2, "finished", {"status": "completed", "finish_reason": ["stop"]}))
    failed = parse_event(encode_event(1, 2, "failed", {"error": {"code": "c", "message": "m"}}))

    assert isinstance(finished, Finished)
    assert isinstance(failed, Failed)
    assert finished.terminal
    assert failed.terminal


def test_fields_of_a_newer_version_are_ignored() -> None:
    event = parse_event(encode_event(1, 1, "started", {"colour": "blue"}))

    assert event.type == "started"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"v":1,"attempt":1,"seq":0,"type":"token"}',
        b'{"v":1,"attempt":1,"seq":1,"type":"song"}',
        b'{"attempt":1,"seq":NaN,"type":"token"}',
        b"[" * 100_000,
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_what_is_no_event_is_refused(raw: bytes) -> None:
    with pytest.raises(ValidationError):
        parse_event(raw)


@given(st.binary() | st.text())
def test_any_bytes_are_an_event_or_are_refused(raw: bytes | str) -> None:
    try:
        parse_event(raw)
    except ValidationError:
        return


event_like = st.fixed_dictionaries(
    {"type": st.sampled_from(["started", "progress", "token", "finished", "failed"])},
    optional={
        name: st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
        for name in ["v", "attempt", "seq", "text", "choice", "tokens", "logprobs", "status", "finish_reason", "error"]
    },
)


@given(event_like)
def test_any_json_is_an_event_with_a_number_or_is_refused(value: dict[str, object]) -> None:
    try:
        event = parse_event(json.dumps(value))
    except ValidationError:
        return
    assert event.seq >= 1
    assert event.attempt >= 0
