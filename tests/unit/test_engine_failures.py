"""A call that fails: whose fault it was is found out, that job alone ends, the others go on as if nothing had been."""

from __future__ import annotations

import pytest

from celery_llama.protocol.results import JobError
from celery_llama_worker.engine.outputs import Ended
from celery_llama_worker.engine.plan import CallError, Piece
from celery_llama_worker.engine.scheduling.sequence import Attempt
from tests.fakes import FakeSampler
from tests.stepping import Rig, attempt, sequence

KEPT, LOST = CallError("no room", cells_lost=False), CallError("the device is gone", cells_lost=True)
PROMPTS = {name: list(range(start, start + 9)) for name, start in (("a", 10), ("b", 30), ("c", 50))}

either_way = pytest.mark.parametrize("error", [KEPT, LOST], ids=["cells kept", "cells lost"])


def job(name: str) -> Attempt:
    return attempt(name, sequence(PROMPTS[name], max_tokens=12, sampler=FakeSampler(ord(name))))


def alone(name: str) -> dict[int, list[int]]:
    """What the job says when nothing fails."""
    rig = Rig()
    rig.run(job(name))
    return rig.said[name].tokens


def break_from(rig: Rig, culprit: Attempt, position: int, error: CallError) -> None:
    """Let every call fail that computes this job's token at `position` or a later one."""

    def breaks(piece: Piece) -> CallError | None:
        (text,) = culprit.sequences
        return error if piece.slot == text.slot and piece.start + len(piece.tokens) > position else None

    rig.engine.breaks = breaks


@either_way
@pytest.mark.parametrize("at", [0, 1, 3, 7], ids=["at once", "reading", "first rows", "decoding"])
def test_a_call_of_one_job_that_fails_ends_that_job(at: int, error: CallError) -> None:
    rig = Rig()
    rig.add(job("a"))
    rig.steps(at)
    rig.engine.failures.append(error)
    rig.step()

    assert rig.said["a"].end == Ended("a", 1, "failed", JobError(code="engine_error", message=error.message))
    assert rig.scheduler.idle
    rig.run(job("b"))
    assert rig.said["b"].tokens == alone("b")


@either_way
@pytest.mark.parametrize("at", [0, 1, 2, 5, 8])
def test_a_call_of_several_jobs_that_fails_once_changes_nothing(at: int, error: CallError) -> None:
    rig = Rig(prefill=12)
    rig.add(*map(job, "abc"))
    rig.steps(at)
    rig.engine.failures.append(error)
    rig.run()

    assert {name: said.tokens for name, said in rig.said.items()} == {name: alone(name) for name in "abc"}


@either_way
@pytest.mark.parametrize("position", [0, 4, 8, 9, 12])
def test_the_culprit_is_found_and_the_others_finish(position: int, error: CallError) -> None:
    rig = Rig(prefill=12)
    jobs = {name: job(name) for name in "abc"}
    break_from(rig, jobs["b"], position, error)

    rig.run(*jobs.values(), within=200)

    assert rig.said["b"].end == Ended("b", 1, "failed", JobError(code="engine_error", message=error.message))
    assert rig.said["b"].tokens.get(0, []) == alone("b")[0][: max(0, position - 8)]
    assert {name: rig.said[name].tokens for name in "ac"} == {name: alone(name) for name in "ac"}


def test_suspects_are_tried_one_by_one_and_then_together_again() -> None:
    rig = Rig(prefill=12)
    rig.add(*map(job, "abc"))
    rig.steps(4)
    rig.engine.failures.append(KEPT)

    shapes = [[len(call) for call in rig.step().calls] for _ in range(3)]

    assert shapes == [[3], [1, 1, 1], [3]]


def test_after_lost_cells_everybody_reads_from_the_start() -> None:
    rig = Rig(prefill=12)
    rig.add(*map(job, "abc"))
    rig.steps(6)
    rig.engine.failures.append(LOST)
    rig.steps(1)

    plan = rig.step()

    assert {piece.start for call in plan.calls for piece in call} == {0}


def test_the_calls_behind_one_that_lost_the_cells_are_not_counted_as_done() -> None:
    rig = Rig(prefill=12)
    rig.add(job("a"))
    rig.steps(4)
    rig.add(job("b"), job("c"))
    rig.engine.failures.append(LOST)  # the decode call; two prompts would have been read behind it
    rig.run()

    assert rig.said["a"].end is not None
    assert rig.said["a"].end.reason == "failed"
    assert {name: rig.said[name].tokens for name in "bc"} == {name: alone(name) for name in "bc"}


def test_what_was_cached_is_not_counted_twice_when_cells_are_lost() -> None:
    rig = Rig()
    shared = list(range(100, 113))
    rig.add(*(attempt(str(n), sequence([*shared, n, n], sampler=FakeSampler(n))) for n in range(2)))
    rig.steps(3)
    rig.engine.failures.extend([LOST, None])
    rig.run()

    assert all(said.began[0].cached_tokens <= len(shared) for said in rig.said.values())


def test_a_failure_ends_all_choices_of_its_job() -> None:
    rig = Rig()
    rig.add(attempt("n", *(sequence(PROMPTS["a"], choice=n, sampler=FakeSampler(n)) for n in range(3))))
    rig.steps(4)
    rig.engine.failures.append(KEPT)
    rig.step()

    assert rig.said["n"].end == Ended("n", 1, "failed", JobError(code="engine_error", message="no room"))


@pytest.mark.parametrize("first", [True, False])
def test_the_samplers_of_a_failed_job_are_not_freed_while_calls_of_the_step_may_use_them(first: bool) -> None:
    rig = Rig(prefill=12)
    choices = [
        sequence([7, 7], choice=0, max_tokens=30, sampler=FakeSampler(says=[1] * 30, fault_at=3)),
        sequence([*range(60, 68)], choice=1, max_tokens=30, sampler=FakeSampler(1)),
    ]
    rig.add(attempt("n", *(choices if first else reversed(choices))))
    rig.run(job("a"))

    assert rig.said["n"].end is not None
    assert rig.said["n"].end.reason == "failed"
    assert rig.said["a"].tokens == alone("a")


@either_way
def test_a_guided_pair_is_tried_together(error: CallError) -> None:
    def guided() -> Attempt:
        return attempt("pair", sequence(PROMPTS["b"], negative=[3] * 6, max_tokens=9, sampler=FakeSampler(5)))

    undisturbed, rig = Rig(), Rig(prefill=12)
    undisturbed.run(guided())
    for at in range(8):
        rig.add(job("a"), guided())
        rig.steps(at)
        rig.engine.failures.append(error)
        rig.run()
        if rig.said["pair"].end == Ended("pair", 1, "done"):
            assert rig.said["pair"].tokens == undisturbed.said["pair"].tokens
        else:
            assert rig.said["a"].tokens == alone("a")
        rig.engine.failures.clear()
