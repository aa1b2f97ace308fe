"""Whatever Redis answers is read or refused: never a crash, never a hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_llama.ledger import queries
from celery_llama.protocol.errors import CeleryLlamaError, JobNotFound, UnreadableData
from celery_llama.protocol.names import Names
from celery_llama.protocol.results import END_STATUSES, Result
from celery_llama.settings import Settings

NAMES = Names("space")
LEDGER = Settings().ledger

field = (
    st.none() | st.binary(max_size=20) | st.sampled_from([b"queued", b"failed", b"1", b"nan", b"9" * 5000, b"[" * 9999])
)


def refused_or_read(parse: Callable[[Any], Any], reply: object) -> Any:
    try:
        return parse(reply)
    except CeleryLlamaError:
        return None


def test_the_state_of_a_job_is_read_from_its_hash() -> None:
    reply = [b"failed", b"2", b"10.5", b"11.5", None, b"3", b"1", b'{"a":"b"}', b'{"code":"c","message":"m"}']

    info = queries.job_info(NAMES, "j").parse(reply)

    assert (info.id, info.status, info.attempts, info.priority) == ("j", "failed", 2, 3)
    assert (info.created_unix_seconds, info.started_unix_seconds, info.worker) == (10.5, 11.5, None)
    assert info.cancel_requested
    assert info.ended
    assert info.metadata == {"a": "b"}
    assert info.error is not None
    assert info.error.code == "c"


@pytest.mark.parametrize("query", [queries.job_info(NAMES, "j"), queries.outcome(NAMES, "j")])
def test_a_job_without_a_status_is_not_found(query: queries.Query[Any]) -> None:
    with pytest.raises(JobNotFound):
        query.parse([None] * (len(query.command) - 2))


def test_a_job_that_ended_without_a_result_cannot_be_read() -> None:
    with pytest.raises(UnreadableData):
        queries.outcome(NAMES, "j").parse([b"completed", None])


def test_an_entry_without_its_event_cannot_be_read() -> None:
    for fields in ({}, {b"e": b"{}"}, None):
        with pytest.raises(UnreadableData):
            queries.events(NAMES, "j", "-", 10).parse([(b"1-1", fields)])


@given(st.lists(field, min_size=9, max_size=9))
def test_any_hash_is_a_state_or_is_refused(reply: list[bytes | None]) -> None:
    info = refused_or_read(queries.job_info(NAMES, "j").parse, reply)

    assert info is None or info.id == "j"


@given(st.sampled_from(sorted(END_STATUSES)) | st.text(), st.none() | st.binary() | st.text().map(str.encode))
def test_any_result_is_a_result_or_is_refused(status: str, result: bytes | None) -> None:
    read = refused_or_read(queries.outcome(NAMES, "j").parse, [status.encode(errors="replace"), result])

    assert read is None or isinstance(read, Result)


@given(st.lists(st.tuples(st.binary(max_size=9), st.dictionaries(st.just(b"e"), st.binary()))))
def test_any_stream_is_events_or_is_refused(reply: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
    refused_or_read(queries.events(NAMES, "j", "-", 10).parse, reply)


@given(created=st.binary(max_size=9), result=st.binary(max_size=30), body=st.binary(max_size=30))
def test_any_answer_to_a_claim_is_a_claim_or_is_refused(created: bytes, result: bytes, body: bytes) -> None:
    refused_or_read(LEDGER.claim("j", "w", "", 5).parse, [b"ended", 0, 0, 0, created, body, b"x", result, b"0"])


def test_a_result_written_by_a_newer_version_is_read() -> None:
    raw = json.dumps({"id": "j", "status": "completed", "colour": "blue"}).encode()

    result = queries.outcome(NAMES, "j").parse([b"completed", raw])

    assert result is not None
    assert result.text == ""
