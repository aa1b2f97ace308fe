"""Embedding jobs in the engine: who shares a call, and how a job ends."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_llama.protocol.events import parse_event
from celery_llama.protocol.results import Result
from celery_llama_worker.bookkeeping.transcript import Transcript
from celery_llama_worker.engine.embedding.scheduler import EmbedAttempt, EmbedScheduler, shape
from celery_llama_worker.engine.outputs import Began, Ended, Output, Text, Vector
from celery_llama_worker.engine.pace import Speed
from celery_llama_worker.engine.plan import Call, CallError, CallResult, Limits, Plan, Values

LIMITS = Limits(slots=4, cells_per_slot=10, batch_tokens=20, can_trim=False)
BROKEN = CallError("it broke", cells_lost=False)


def values(*numbers: float) -> Values:
    return np.array(numbers, dtype=np.float32)


def job(name: str, *lengths: int, priority: int = 5, seconds: float = 1e6, normalize: bool = False) -> EmbedAttempt:
    """A job whose texts have so many tokens; a text's tokens and its vector are its number."""
    texts = [[index] * length for index, length in enumerate(lengths)]
    return EmbedAttempt(name, 1, priority, seconds, texts, normalize)


def scheduler(*jobs: EmbedAttempt) -> EmbedScheduler:
    new = EmbedScheduler(LIMITS)
    for one in jobs:
        assert new.add(one) == []
    return new


def shares(plan: Plan) -> list[list[int]]:
    """The lengths of the texts in each call."""
    return [[len(piece.tokens) for piece in call] for call in plan.calls]


def computed(call: Call) -> CallResult:
    """What an engine makes of a call."""
    assert sum(len(piece.tokens) for piece in call) <= LIMITS.batch_tokens
    assert [piece.slot for piece in call] == list(range(len(call)))
    assert len(call) <= LIMITS.slots
    return CallResult(vectors={piece.slot: values(piece.tokens[0], 1.0) for piece in call})


def step(scheduler: EmbedScheduler, error: CallError | None = None) -> list[Output]:
    (call,) = scheduler.plan(0.0).calls
    return scheduler.commit(call, CallResult(error=error) if error else computed(call))


def run(scheduler: EmbedScheduler) -> list[Output]:
    outputs: list[Output] = []
    while not scheduler.idle:
        outputs += step(scheduler)
    return outputs


def ends(outputs: Iterable[Output]) -> list[tuple[str, str]]:
    return [(output.job_id, output.reason) for output in outputs if isinstance(output, Ended)]


def test_texts_of_many_jobs_share_a_call_up_to_its_tokens_and_slots() -> None:
    assert shares(scheduler(job("a", 6, 6), job("b", 6), job("c", 6, 2)).plan(0.0)) == [[6, 6, 6]]
    assert shares(scheduler(job("a", 1, 1), job("b", 1, 1), job("c", 1)).plan(0.0)) == [[1, 1, 1, 1]]


def test_a_text_that_does_not_fit_leaves_its_room_to_a_smaller_one_and_goes_first_in_the_next_call() -> None:
    three = scheduler(job("a", 9, 5), job("b", 9), job("c", 4))

    assert shares(three.plan(0.0)) == [[9, 5, 4]]
    step(three)
    assert shares(three.plan(0.0)) == [[9]]


def test_the_more_urgent_job_goes_first() -> None:
    two = scheduler(job("later", 9, 9, priority=9), job("now", 9, 9, priority=0))

    assert ends(step(two)) == [("now", "done")]
    assert ends(step(two)) == [("later", "done")]


def test_a_job_begins_once_gets_its_vectors_in_order_and_ends() -> None:
    outputs = run(scheduler(job("a", 9, 9, 9)))

    assert outputs[0] == Began("a", 1, 0)
    assert [(output.index, output.values[0]) for output in outputs if isinstance(output, Vector)] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    assert outputs[-2:] == [Text("a", 1, 0, "", (), "stop"), Ended("a", 1, "done")]
    assert sum(isinstance(output, Began) for output in outputs) == 1


def test_a_cancelled_job_says_nothing_more_and_its_neighbours_go_on() -> None:
    two = scheduler(job("a", 9, 9, 9), job("b", 9))
    step(two)

    assert two.end("a", "cancelled") == [Text("a", 1, 0, "", (), "cancelled"), Ended("a", 1, "cancelled")]
    assert two.end("a", "cancelled") == []
    assert ends(run(two)) == [("b", "done")]


def test_a_jobs_time_runs_from_its_first_call() -> None:
    two = scheduler(job("a", *[9] * 6, seconds=5.0), job("b", 9, priority=9, seconds=5.0))
    (call,) = two.plan(100.0).calls
    two.commit(call, computed(call))

    assert two.expire(104.0) == []
    assert ends(two.expire(105.0)) == [("a", "timeout")]
    assert two.job_ids == ["b"]


def test_a_second_attempt_takes_the_firsts_place() -> None:
    one = scheduler(job("a", 9))

    assert ends(one.add(EmbedAttempt("a", 2, 5, 1e6, [[7]]))) == [("a", "dropped")]
    assert [output.attempt for output in run(one)] == [2, 2, 2, 2]


def test_a_call_that_fails_is_tried_again_job_by_job_and_ends_the_one_that_fails_alone() -> None:
    three = scheduler(job("a", 3, 3), job("b", 3), job("c", 9, 9))
    assert step(three, BROKEN) == []

    assert shares(three.plan(0.0)) == [[3, 3]]
    assert ends(step(three, BROKEN)) == [("a", "failed")]
    assert ends(step(three)) == [("b", "done")]
    assert ends(run(three)) == [("c", "done")]


def test_values_that_are_no_numbers_fail_their_job_alone() -> None:
    two = scheduler(job("a", 3, 3), job("b", 3))
    (call,) = two.plan(0.0).calls
    result = computed(call)
    result.vectors[0] = values(float("nan"), 1.0)

    outputs = two.commit(call, result)

    assert ends(outputs) == [("a", "failed"), ("b", "done")]
    assert [output.job_id for output in outputs if isinstance(output, Vector)] == ["b"]


def test_a_vector_is_cut_before_it_is_scaled() -> None:
    vector = values(3.0, 4.0, 12.0)

    assert np.allclose(kept(vector, None, normalize=False), [3, 4, 12])
    assert np.allclose(kept(vector, 2, normalize=True), [0.6, 0.8])
    assert np.allclose(kept(vector, 2, normalize=False), [3, 4])


def test_a_vector_of_zeros_stays_one_and_one_of_no_numbers_is_none() -> None:
    assert not kept(values(0.0, 0.0), None, normalize=True).any()
    assert shape(values(float("inf"), 0.0), None, normalize=True) is None
    assert shape(values(float("nan"), 0.0), None, normalize=False) is None


def kept(vector: Values, dimensions: int | None, *, normalize: bool) -> Values:
    shaped = shape(vector, dimensions, normalize=normalize)
    assert shaped is not None
    return shaped


def test_vectors_are_in_the_result_to_the_last_bit_and_in_no_event() -> None:
    numbers = np.random.default_rng(0).standard_normal((2, 500)).astype(np.float32)
    transcript = Transcript("j", 1, attempts=1, worker="w", model="m", piece=lambda _: b"")
    outputs: list[Output] = [Began("j", 1, 0), *(Vector("j", 1, index, vector) for index, vector in enumerate(numbers))]

    emission = transcript.write([*outputs, Text("j", 1, 0, "", (), "stop")])
    _, event, result = transcript.end(Ended("j", 1, "done"))

    assert [parse_event(event).type for _, event in emission.events] == ["started"]
    assert "embeddings" not in event
    read = Result.model_validate_json(result.model_dump_json())
    assert np.array_equal(np.array(read.embeddings, dtype=np.float32), numbers)
    assert (read.status, read.text) == ("completed", "")


def test_a_job_that_was_cut_has_no_vectors() -> None:
    transcript = Transcript("j", 1, attempts=1, worker="w", model="m", piece=lambda _: b"")
    transcript.write([Began("j", 1, 0), Vector("j", 1, 0, values(1.0)), Text("j", 1, 0, "", (), "timeout")])

    _, _, result = transcript.end(Ended("j", 1, "timeout"))

    assert (result.status, result.finish_reason, result.embeddings) == ("incomplete", "timeout", None)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 10), min_size=1, max_size=6), st.integers(0, 9)), min_size=1, max_size=8
    ),
    st.lists(st.booleans(), max_size=6),
)
def test_every_job_ends_once_with_all_its_vectors_whatever_shares_its_calls(
    jobs: list[tuple[list[int], int]], failures: list[bool]
) -> None:
    many = scheduler(*(job(f"job-{n}", *lengths, priority=priority) for n, (lengths, priority) in enumerate(jobs)))
    outputs: list[Output] = []
    for fails in failures:
        if not many.idle:
            outputs += step(many, BROKEN if fails else None)
    outputs += run(many)

    ended = dict(ends(outputs))
    assert len(ends(outputs)) == len(ended) == len(jobs)
    for number, (lengths, _) in enumerate(jobs):
        found = [output.index for output in outputs if isinstance(output, Vector) and output.job_id == f"job-{number}"]
        whole = list(range(len(lengths)))
        assert found == (whole if ended[f"job-{number}"] == "done" else whole[: len(found)])
    assert (many.counters.active, many.counters.waiting) == (0, 0)


@pytest.mark.parametrize("reason", ["handed_back", "dropped", "failed"])
def test_how_a_job_ends_early_is_passed_on(reason: str) -> None:
    assert ends(scheduler(job("a", 3)).end("a", reason)) == [("a", reason)]  # type: ignore[arg-type]


def test_on_a_slow_machine_a_call_has_as_many_texts_as_it_has_time_for_and_always_one() -> None:
    slow = EmbedScheduler(LIMITS, step_seconds=12.0, speed=Speed(seconds_per_token=1.0))
    slow.add(job("long", 10))
    slow.add(job("short", 6, 6, 5))

    assert slow.counters.longest_call_seconds == 10.0
    assert shares(slow.plan(0.0)) == [[10]]
    run(slow)
    slow.add(job("short", 6, 6, 5))
    assert shares(slow.plan(0.0)) == [[6, 6]]
