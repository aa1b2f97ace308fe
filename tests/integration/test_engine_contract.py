"""What every engine keeps to: the same rules for the fake, with which the scheduler is tested, and for llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.llama.engine import LlamaEngine, LlamaModel
from celery_llama_worker.engine.llama.sampling import make_sampler
from celery_llama_worker.engine.plan import Copy, Engine, Limits, Piece, Plan, Sampler, Trim
from celery_llama_worker.settings import WorkerSettings
from tests.decoding import decode, generate, operate, read, run
from tests.fakes import FakeEngine, FakeSampler
from tests.tiny_model import tiny_model

PROMPT = [40, 41, 42, 43, 44, 45, 46, 47]
OTHER = [90, 91, 92]


class Subject(NamedTuple):
    """An engine, and samplers that choose the likeliest token."""

    engine: Engine
    greedy: Callable[[], Sampler]


@pytest.fixture(params=["fake", "llama"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "fake":
        limits = Limits(slots=4, cells_per_slot=256, batch_tokens=64, can_trim=True, spare_slots=1)
        yield Subject(FakeEngine(limits), FakeSampler)
        return
    settings = WorkerSettings(slots=4, ctx_per_slot=256, chunk_tokens=16, prefill_tokens=64, threads=1)
    job = GenerateJob(prompt="x", temperature=0)
    with LlamaModel(tiny_model()) as model, LlamaEngine(model, settings) as engine:
        yield Subject(engine, lambda: make_sampler(job, model, seed=1))


def test_the_limits_are_what_was_asked_for(subject: Subject) -> None:
    limits = subject.engine.limits._replace(cell_bytes=1)

    assert limits == Limits(slots=4, cells_per_slot=256, batch_tokens=64, can_trim=True, spare_slots=1)


def test_only_pieces_with_a_sampler_are_sampled(subject: Subject) -> None:
    result = run(subject.engine, Piece(0, 0, PROMPT, None), Piece(1, 0, PROMPT, subject.greedy()))

    assert list(result.sampled) == [1]


def test_a_sequences_tokens_do_not_depend_on_its_neighbours(subject: Subject) -> None:
    engine, greedy = subject
    alone = generate(engine, 0, PROMPT, greedy(), 5)
    operate(engine, Trim(0, 0))

    first = run(engine, Piece(0, 0, PROMPT, greedy()), Piece(2, 0, PROMPT[::-1], greedy()))
    second = run(engine, *(Piece(slot, 8, [first.sampled[slot].token], greedy()) for slot in (2, 0)))

    assert [first.sampled[0].token, second.sampled[0].token] == alone[:2]


def test_pieces_may_come_in_any_order_of_slots(subject: Subject) -> None:
    engine, greedy = subject
    pieces = [Piece(slot, 0, [50 + slot, 60, 70], greedy()) for slot in range(4)]
    ascending = run(engine, *pieces)

    shuffled = run(engine, *(pieces[slot] for slot in (2, 0, 3, 1)), operations=[Trim(slot, 0) for slot in range(4)])

    assert shuffled.sampled == ascending.sampled


def test_calls_of_a_plan_are_carried_out_in_order(subject: Subject) -> None:
    engine, greedy = subject
    whole = generate(engine, 0, PROMPT, greedy(), 1)
    operate(engine, Trim(0, 0))

    first, second = engine.execute(Plan(calls=[[Piece(0, 0, PROMPT[:4], None)], [Piece(0, 4, PROMPT[4:], greedy())]]))

    assert not first.sampled
    assert second.sampled[0].token == whole[0]


def test_a_copy_goes_on_like_its_source(subject: Subject) -> None:
    engine, greedy = subject
    first = read(engine, 0, PROMPT, greedy())

    operate(engine, Copy(0, 3, len(PROMPT)))

    assert decode(engine, 3, greedy(), 8, first, 4) == decode(engine, 0, greedy(), 8, first, 4)


def test_a_copied_beginning_may_be_continued_otherwise(subject: Subject) -> None:
    engine, greedy = subject
    fresh = generate(engine, 1, PROMPT[:4] + OTHER, greedy(), 1)
    read(engine, 0, PROMPT)

    operate(engine, Copy(0, 2, 4))

    assert read(engine, 2, OTHER, greedy(), start=4) == fresh[0]


def test_a_copy_replaces_what_its_target_held(subject: Subject) -> None:
    engine, greedy = subject
    expected = generate(engine, 0, OTHER, greedy(), 1)
    operate(engine, Trim(0, 0))
    read(engine, 0, OTHER[:2])
    read(engine, 1, PROMPT)

    operate(engine, Copy(0, 1, 2))

    assert read(engine, 1, OTHER[2:], greedy(), start=2) == expected[0]


def test_copies_are_carried_out_in_order(subject: Subject) -> None:
    engine, greedy = subject
    first = read(engine, 0, PROMPT, greedy())
    other = read(engine, 1, OTHER, greedy())
    expected = decode(engine, 0, greedy(), 8, first, 1), decode(engine, 1, greedy(), 3, other, 1)

    # an exchange of two slots by way of a third
    operate(engine, Copy(0, 2, 8), Copy(1, 0, 3), Copy(2, 1, 8), Trim(2, 0))

    assert (decode(engine, 1, greedy(), 8, first, 1), decode(engine, 0, greedy(), 3, other, 1)) == expected


def test_a_copy_onto_itself_only_trims(subject: Subject) -> None:
    engine, greedy = subject
    fresh = generate(engine, 1, PROMPT[:4] + OTHER, greedy(), 1)
    read(engine, 0, PROMPT)

    operate(engine, Copy(0, 0, 4))

    assert read(engine, 0, OTHER, greedy(), start=4) == fresh[0]


def test_a_trimmed_slot_forgets_its_tail(subject: Subject) -> None:
    engine, greedy = subject
    fresh = generate(engine, 1, PROMPT[:4] + OTHER, greedy(), 1)
    read(engine, 0, PROMPT)

    operate(engine, Trim(0, 4))

    assert read(engine, 0, OTHER, greedy(), start=4) == fresh[0]


def test_the_spare_slot_holds_cells_like_any_other(subject: Subject) -> None:
    engine, greedy = subject
    first = read(engine, 0, PROMPT, greedy())

    operate(engine, Copy(0, 4, 8), Trim(0, 0))

    assert decode(engine, 4, greedy(), 8, first, 3) == generate(engine, 0, PROMPT, greedy(), 4)[1:]


def test_a_slot_can_be_filled_to_its_last_cell(subject: Subject) -> None:
    engine, greedy = subject
    for start in range(0, 256, 64):
        token = read(engine, 0, [30 + start % 7] * 64, greedy(), start)

    assert token is not None


def test_an_engine_may_be_closed_twice(subject: Subject) -> None:
    subject.engine.close()
    subject.engine.close()
