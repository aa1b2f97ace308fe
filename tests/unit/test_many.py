"""Many jobs at once, step by step, without a server: the replies are given by hand."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_llama.client.many import cancel_queued, lockstep
from celery_llama.client.steps import Flow, TellWorkers, Together
from celery_llama.ledger.queries import OpenJobs, Query
from celery_llama.protocol.errors import JobNotFound
from celery_llama.protocol.results import JobInfo
from celery_llama.settings import Settings
from tests.unit.test_flows import play


def question(name: str) -> Query[str]:
    return Query([name], str)


def ask(*names: str) -> Flow[list[str]]:
    answers = []
    for name in names:
        answers.append((yield question(name)))
    return answers


def asked(taken: list[Any]) -> list[list[str | int]]:
    steps = [step for step in taken if isinstance(step, Together)]
    return [[call.command[0] for call in step.calls if isinstance(call, Query)] for step in steps]


def test_what_many_flows_ask_goes_in_one_round_trip_each_time() -> None:
    flows = [ask("a", "b"), ask(), ask("c"), ask("d", "e", "f")]

    taken, returned = play(lockstep(flows), [["A", "C", "D"], ["B", "E"], ["F"]])

    assert asked(taken) == [["a", "c", "d"], ["b", "e"], ["f"]]
    assert returned == [["A", "B"], [], ["C"], ["D", "E", "F"]]


def test_one_flow_s_trouble_is_not_the_others() -> None:
    flows = [ask("a"), ask("b", "c"), ask("d")]
    errors = [JobNotFound("a"), redis.ResponseError("WRONGTYPE")]

    _, returned = play(lockstep(flows), [[errors[0], "B", errors[1]], ["C"]])

    assert returned == [errors[0], ["B", "C"], errors[1]]


def test_what_is_not_for_redis_is_done_one_by_one_between_the_round_trips() -> None:
    def cancel(job_id: str) -> Flow[None]:
        yield question(job_id)
        yield TellWorkers(job_id)

    taken, _ = play(lockstep([cancel("a"), cancel("b")]), [["A", "B"], None, None])

    assert taken[1:] == [TellWorkers("a"), TellWorkers("b")]


def test_no_flows_need_no_steps() -> None:
    assert play(lockstep([]), []) == ([], [])


def test_a_server_that_refuses_to_cancel_is_not_taken_for_jobs_that_are_gone() -> None:
    refusal = redis.ResponseError("OOM")
    replies: list[object] = [OpenJobs(0, ["a"]), [JobInfo(id="a", status="queued")], [refusal]]

    with pytest.raises(redis.ResponseError, match="OOM"):
        play(cancel_queued(Settings(), {}), replies)
