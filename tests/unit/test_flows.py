"""What the clients do, step by step, without a server: the replies are given by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import redis
from pydantic import BaseModel

from celery_llama.client import flows, steps
from celery_llama.client.steps import Flow, Listen, Publish, Subscribe, TellWorkers, Waiting
from celery_llama.ledger.ledger import Replay, Submission
from celery_llama.ledger.operation import Operation
from celery_llama.ledger.queries import Query
from celery_llama.ledger.replay import PAGE_ENTRIES
from celery_llama.protocol.errors import (
    IdempotencyConflict,
    InvalidJob,
    JobNotFound,
    JobTooLarge,
    OutputMismatch,
    ResultTimeout,
    StreamExpired,
)
from celery_llama.protocol.events import AnyEvent, Event, Heartbeat, encode_event, parse_event
from celery_llama.protocol.jobs import GenerateJob
from celery_llama.protocol.results import Choice, Result
from celery_llama.settings import Settings

SETTINGS = Settings()
NAMES = SETTINGS.names


class City(BaseModel):
    name: str


def token(seq: int) -> bytes:
    return encode_event(1, seq, "token", {"text": str(seq)}).encode()


def end(seq: int) -> bytes:
    return encode_event(1, seq, "finished", {"status": "completed", "finish_reason": ["stop"]}).encode()


def page(*events: bytes) -> list[tuple[str, AnyEvent]]:
    read = [parse_event(event) for event in events]
    return [(f"{event.attempt}-{event.seq}", event) for event in read]


def play(flow: Flow[Any], replies: Iterable[object]) -> tuple[list[Any], Any]:
    """Run a flow with these replies; returns its steps and what it returned."""
    taken: list[Any] = []
    answers = iter(replies)
    reply: object = None
    while True:
        try:
            step = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
        except StopIteration as stop:
            return taken, stop.value
        taken.append(step)
        reply = None if isinstance(step, Event) else next(answers)


def follow(*replies: object, after: int = 0) -> list[Any]:
    return play(flows.stream(NAMES, "j", after, Waiting("j", None)), replies)[0]


def seqs(taken: list[Any]) -> list[int]:
    return [step.seq for step in taken if isinstance(step, Event)]


def kinds(taken: list[Any]) -> list[type]:
    return [type(step) for step in taken if not isinstance(step, Event)]


# streaming


def test_a_reader_subscribes_before_it_looks_into_the_stream() -> None:
    taken = follow(None, page(token(1), end(2)))

    assert kinds(taken) == [Subscribe, Query]
    assert seqs(taken) == [1, 2]


def test_a_reader_of_a_running_job_replays_and_then_listens() -> None:
    taken = follow(None, page(token(1)), False, token(1), token(2), end(3))

    assert kinds(taken) == [Subscribe, Query, Query, Listen, Listen, Listen]
    assert seqs(taken) == [1, 2, 3]


@pytest.mark.parametrize("trouble", [token(4), None, b"garbage", redis.ConnectionError()], ids=repr)
def test_after_a_gap_silence_garbage_or_a_lost_connection_a_reader_begins_again(trouble: object) -> None:
    taken = follow(None, page(token(1)), False, trouble, None, page(token(2), token(3), end(4)))

    assert kinds(taken) == [Subscribe, Query, Query, Listen, Subscribe, Query]
    assert seqs(taken) == [1, 2, 3, 4]
    assert taken[-5 + 1].command[2] == "(1-1"


def test_a_job_that_ends_while_the_reader_looks_is_read_to_its_end() -> None:
    taken = follow(None, page(token(1)), True, page(end(2)))

    assert seqs(taken) == [1, 2]


def test_a_stream_without_its_end_after_the_job_has_ended_has_expired() -> None:
    with pytest.raises(StreamExpired):
        follow(None, [], True, [])


def test_a_hole_in_the_stream_is_not_passed_over() -> None:
    with pytest.raises(StreamExpired):
        follow(None, page(token(1), token(3)))


def test_a_stream_begun_anew_by_a_retry_is_not_mixed_with_the_old_one() -> None:
    again = encode_event(2, 1, "token", {"text": "x"}).encode()

    with pytest.raises(StreamExpired):
        follow(None, page(token(1), token(2)), False, again, None, page(again))


def test_a_reader_that_resumes_after_the_end_gets_nothing_and_ends() -> None:
    assert seqs(follow(None, page(token(1), end(2)), after=2)) == []


def test_a_full_page_is_followed_by_another() -> None:
    first = page(*(token(seq) for seq in range(1, PAGE_ENTRIES + 1)))

    taken = follow(None, first, page(end(PAGE_ENTRIES + 1)))

    queries = [step for step in taken if isinstance(step, Query)]
    assert [query.command[2] for query in queries] == ["-", f"(1-{PAGE_ENTRIES}"]
    assert seqs(taken) == list(range(1, PAGE_ENTRIES + 2))


def test_a_server_that_was_never_reached_is_not_waited_for() -> None:
    with pytest.raises(redis.ConnectionError):
        follow(redis.ConnectionError())


def test_a_server_that_stays_away_is_not_waited_for_without_end() -> None:
    now = 0.0
    waiting = Waiting("j", None, clock=lambda: now)
    waiting.reached()
    waiting.lost(redis.ConnectionError())

    now = steps.PATIENCE_SECONDS + steps.IDLE_SECONDS + 1

    with pytest.raises(redis.ConnectionError):
        waiting.lost(redis.ConnectionError())


def test_a_caller_waits_no_longer_than_it_said() -> None:
    now = 0.0
    waiting = Waiting("j", 20.0, clock=lambda: now)

    assert waiting.listen() == Listen(steps.IDLE_SECONDS)
    now = 18.0
    assert waiting.listen() == Listen(2.0)
    now = 20.0
    with pytest.raises(ResultTimeout, match="did not end within 20 s"):
        waiting.listen()


class Clock:
    """Goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_reader_that_wants_heartbeats_is_told_of_a_silence() -> None:
    clock = Clock()
    flow = flows.stream(NAMES, "j", 0, Waiting("j", None, 5.0, clock))
    flow.send(None)
    flow.send(None)
    assert flow.send(page(token(1))) == parse_event(token(1))
    flow.send(None)
    assert flow.send(False) == Listen(5.0)

    clock.now = 2.0
    assert flow.send(token(2)) == parse_event(token(2), "j")
    assert flow.send(None) == Listen(5.0)
    clock.now = 7.0
    assert flow.send(None) == Heartbeat(job_id="j", seq=2)
    assert flow.send(None) == Listen(5.0)
    clock.now = 12.0
    assert flow.send(None) == Heartbeat(job_id="j", seq=2)


def test_heartbeats_do_not_keep_a_reader_from_looking_whether_its_connection_lives() -> None:
    clock = Clock()
    flow = flows.stream(NAMES, "j", 0, Waiting("j", None, 5.0, clock))
    flow.send(None)
    flow.send(None)
    flow.send([])
    step = flow.send(False)
    beats = 0
    while not isinstance(step, Subscribe):
        if isinstance(step, Heartbeat):
            beats += 1
        else:
            assert isinstance(step, Listen)
            clock.now += step.seconds
        step = flow.send(None)

    assert (beats, clock.now) == (2, steps.IDLE_SECONDS)


def test_a_caller_s_timeout_comes_before_a_heartbeat_that_is_later() -> None:
    clock = Clock()
    waiting = Waiting("j", 3.0, 5.0, clock)

    assert waiting.listen() == Listen(3.0)


@pytest.mark.parametrize("heartbeat", [0, -1.0, float("nan")])
def test_a_heartbeat_is_a_number_of_seconds(heartbeat: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Waiting("j", None, heartbeat)


# waiting for the result

RESULT = Result(id="j", status="completed", choices=[Choice(text='{"name": "Rome"}')])


def test_the_result_of_a_job_that_has_ended_needs_no_subscription() -> None:
    taken, result = play(flows.wait(NAMES, "j", Waiting("j", None)), [RESULT])

    assert kinds(taken) == [Query]
    assert result is RESULT


def test_the_result_of_a_running_job_is_read_when_its_end_is_announced() -> None:
    taken, result = play(flows.wait(NAMES, "j", Waiting("j", None)), [None, None, None, end(2), RESULT])

    assert kinds(taken) == [Query, Subscribe, Query, Listen, Query]
    assert result is RESULT


def test_who_waits_for_the_result_hears_nothing_of_the_tokens() -> None:
    taken, _ = play(flows.wait(NAMES, "j", Waiting("j", None)), [None, None, RESULT])

    assert [step.channel for step in taken if isinstance(step, Subscribe)] == [NAMES.ended("j")]


@pytest.mark.parametrize("trouble", [None, redis.ConnectionError()], ids=repr)
def test_who_waits_for_the_result_asks_again_after_silence_or_a_lost_connection(trouble: object) -> None:
    asked = [trouble] if trouble else [trouble, None]  # after a silence the ledger is asked at once

    taken, result = play(flows.wait(NAMES, "j", Waiting("j", None)), [None, None, None, *asked, None, RESULT])

    assert kinds(taken)[-2:] == [Subscribe, Query]
    assert result is RESULT


def test_the_output_becomes_an_instance_of_the_response_model() -> None:
    assert flows.parsed(RESULT, City).parsed == City(name="Rome")


def test_a_truncated_output_is_not_parsed() -> None:
    result = Result(id="j", status="incomplete", choices=[Choice(text='{"na', finish_reason="length")])

    assert flows.parsed(result, City).parsed is None


def test_an_output_that_the_response_model_refuses_is_an_error_with_the_result() -> None:
    result = Result(id="j", status="completed", choices=[Choice(text="{}")])

    with pytest.raises(OutputMismatch) as caught:
        flows.parsed(result, City)

    assert caught.value.result is result


# submitting


def submit(job: GenerateJob, submission: Submission, settings: Settings = SETTINGS) -> tuple[list[Any], Any]:
    flow = flows.submit(settings, job)
    operation = flow.send(None)
    assert isinstance(operation, Operation)
    own = str(operation.arguments[0])
    answer = Submission(submission.outcome, submission.job_id or own)
    taken = []
    try:
        step = flow.send(answer)
        while True:
            taken.append(step)
            step = flow.send(None)
    except StopIteration as stop:
        return taken, stop.value


def test_a_new_job_is_published_with_its_priority() -> None:
    taken, job_id = submit(GenerateJob(prompt="x", priority=2), Submission("created", ""))

    assert taken == [Publish(job_id, {"prompt": "x", "priority": 2}, 2)]


def test_a_job_whose_first_answer_was_lost_is_published_all_the_same() -> None:
    taken, job_id = submit(GenerateJob(prompt="x"), Submission("existing", ""))

    assert [step.job_id for step in taken] == [job_id]


def test_a_job_that_was_submitted_before_is_not_published_again() -> None:
    assert submit(GenerateJob(prompt="x"), Submission("existing", "other")) == ([], "other")


def test_the_same_key_with_another_body_is_refused() -> None:
    with pytest.raises(IdempotencyConflict, match="other"):
        submit(GenerateJob(prompt="x"), Submission("conflict", "other"))


def test_a_job_above_the_size_limit_is_refused_before_anything_is_stored() -> None:
    with pytest.raises(JobTooLarge, match="the limit is 100"):
        next(flows.submit(Settings(max_job_bytes=100), GenerateJob(prompt="x" * 100)))


def test_a_response_model_becomes_the_response_format() -> None:
    job = flows.prepare(None, City, {"prompt": "x"})

    assert job.response_format.json_schema is not None
    assert job.response_format.json_schema.schema_ == City.model_json_schema()
    assert flows.prepare(GenerateJob(prompt="x"), City, {}) == job


def test_a_response_model_beside_a_response_format_is_refused() -> None:
    with pytest.raises(InvalidJob):
        flows.prepare(None, City, {"prompt": "x", "response_format": {"type": "json_object"}})


def test_a_job_beside_fields_is_a_mistake_in_the_program() -> None:
    with pytest.raises(TypeError):
        flows.prepare(GenerateJob(prompt="x"), None, {"max_tokens": 1})
    with pytest.raises(TypeError):
        flows.prepare("x", None, {"prompt": "x"})


def test_a_text_alone_is_the_prompt() -> None:
    assert flows.prepare("x", None, {"n": 2}) == GenerateJob(prompt="x", n=2)


@pytest.mark.parametrize("given", [[{"role": "user", "content": "x"}], {"prompt": "x"}, b"x"], ids=str)
def test_what_is_neither_a_prompt_nor_a_job_is_refused_with_its_kind(given: Any) -> None:
    with pytest.raises(InvalidJob, match=f"not a {type(given).__name__}$"):
        flows.prepare(given, None, {})


def test_a_stream_begins_at_0_or_later() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        follow(after=-1)


# ending


@pytest.mark.parametrize("body", [b"null", b"[1]", b"nonsense"])
def test_a_job_whose_body_makes_no_sense_is_sent_again_like_any_other(body: bytes) -> None:
    """Somebody sent it without our client; the ledger's body is the one that counts."""
    taken, _ = play(flows.retry(SETTINGS, "j"), [Replay("queued", body, 3), None])

    assert taken[-1] == Publish("j", {}, 3)


def test_the_workers_are_told_of_a_cancelled_job_only_if_one_runs_it() -> None:
    assert play(flows.cancel(SETTINGS, "j"), ["requested", None])[0][1:] == [TellWorkers("j")]
    assert play(flows.cancel(SETTINGS, "j"), ["closed"])[0][1:] == []
    with pytest.raises(JobNotFound):
        play(flows.cancel(SETTINGS, "j"), ["unknown"])
