"""A text that is taken up again and decoded as it was the first time goes on as if nothing had happened."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from celery_llama_worker.engine.plan import CallError
from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence
from tests.fakes import FIRST_END_TOKEN, FakeSampler
from tests.stepping import Rig, attempt, chunks_of, rows_of, sequence

PROMPT = list(range(20, 30))
LENGTH = 12


class Dice(FakeSampler):
    """Draws by what it has drawn before, as a random generator does, and by the cells; never an end."""

    def next(self, cells: list[Any]) -> int:
        super().next(cells)
        return zlib.crc32(repr((self._seed, self._drawn, cells)).encode()) % FIRST_END_TOKEN


def text(prompt: list[int] = PROMPT, *, seed: int = 1, choice: int = 0, negative: list[int] | None = None) -> Sequence:
    """A text as a first attempt makes it."""
    return sequence(prompt, choice=choice, max_tokens=LENGTH, sampler=Dice(seed), negative=negative or ())


def resumed(one: Sequence, said: list[int], *, seed: int = 1) -> Sequence:
    """The same after an attempt that said this, to be decoded again."""
    for part in one.parts:
        part.tokens += said
    one.sampler = Dice(seed + 1000)
    for token in said:
        one.text.feed(bytes([97 + token % 26]))
        one.sampler.accept(token)
    one.redraw(Dice(seed))
    return one


def tokens_of(rig: Rig, job_id: str = "a", choice: int = 0) -> list[int]:
    return rig.said[job_id].tokens.get(choice, [])


def undisturbed(*texts: Sequence) -> list[list[int]]:
    """What these choices say when nothing happens."""
    rig = Rig(rounding=True, cells=96)
    rig.run(attempt("a", *texts))
    return [tokens_of(rig, choice=number) for number in range(len(texts))]


@pytest.mark.parametrize("said", range(1, LENGTH))
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1], PROMPT[:8]], ids=["10", "1", "8"])
def test_it_says_the_rest_of_what_it_would_have_said(said: int, prompt: list[int]) -> None:
    (whole,) = undisturbed(text(prompt))
    rig = Rig(rounding=True)

    plans = rig.watch(attempt("a", resumed(text(prompt), whole[:said]), number=2))

    assert tokens_of(rig) == whole[said:]
    assert not rig.said["a"].departed
    assert sum(len(piece.tokens) for plan in plans for piece in chunks_of(plan)) == (len(prompt) if prompt[1:] else 0)
    assert sum(len(rows_of(plan)) for plan in plans) == LENGTH - (len(prompt) > 1)


def test_read_as_a_prompt_it_would_go_on_otherwise() -> None:
    """What this is about: the fake engine's cells know how they were computed, as real ones do."""
    (whole,) = undisturbed(text())
    read = resumed(text(), whole[:6])
    read.stop_redrawing()
    rig = Rig(rounding=True)

    rig.run(attempt("a", read, number=2))

    assert tokens_of(rig) != whole[6:]


def test_neighbours_and_more_urgent_jobs_change_nothing() -> None:
    (whole,) = undisturbed(text())
    rig = Rig(rounding=True, slots=2, cells=96)
    # the first has read as a prompt what was said: its cells are not those that decoding made
    rig.run(attempt("reader", sequence([*PROMPT, *whole[:7], 1, 2, 3], max_tokens=2, sampler=Dice(5))))
    rig.add(
        attempt("a", resumed(text(), whole[:7]), number=2, priority=6),
        attempt("b", text(PROMPT[:9], seed=3), priority=6),
    )
    rig.steps(7)

    rig.run(*(attempt(f"urgent-{number}", text([5, 6, number], seed=9), priority=0) for number in range(2)))

    assert tokens_of(rig) == whole[7:]
    assert rig.scheduler.counters.set_aside


@pytest.mark.parametrize("said", [1, 5, LENGTH - 1])
def test_choices_and_guided_texts_are_resumed_exactly(said: int) -> None:
    choices = undisturbed(text(seed=1), text(seed=2, choice=1))
    (guided,) = undisturbed(text(negative=[1, 2, 3, 4, 5, 6]))
    rig = Rig(rounding=True, cells=96)

    rig.run(
        attempt(
            "a",
            resumed(text(seed=1), choices[0][:said]),
            resumed(text(seed=2, choice=1), choices[1][:2], seed=2),
            number=2,
        ),
        attempt("guided", resumed(text(negative=[1, 2, 3, 4, 5, 6]), guided[:said]), number=2),
    )

    assert [tokens_of(rig, choice=number) for number in range(2)] == [choices[0][said:], choices[1][2:]]
    assert tokens_of(rig, "guided") == guided[said:]


def test_where_something_else_is_drawn_what_was_said_holds_and_it_is_told() -> None:
    """Another processor, perhaps: the text goes on after what readers have, and its sampler knows all of that."""
    said = [1, 2, 3, 4, 5]
    one = resumed(text(), said)
    drawing, spare = one.sampler, one.spare
    rig = Rig(rounding=True)

    rig.run(attempt("a", one, number=2))

    assert len(tokens_of(rig)) == LENGTH - len(said)
    assert rig.said["a"].departed == 1
    assert isinstance(spare, FakeSampler)
    assert isinstance(drawing, FakeSampler)
    assert spare.accepted == said
    assert spare.closed
    assert drawing.closed


@pytest.mark.parametrize("steps", [1, 4, 6, 9])
def test_where_the_cells_are_lost_meanwhile_it_still_says_all_of_its_text_once(steps: int) -> None:
    (whole,) = undisturbed(text())
    rig = Rig(rounding=True)
    rig.add(attempt("a", resumed(text(), whole[:6]), number=2), attempt("b", text([1, 2, 3], seed=4)))
    rig.steps(steps)
    rig.engine.failures.append(CallError("lost", cells_lost=True))

    while not rig.scheduler.idle:
        rig.step()

    assert len(tokens_of(rig)) == LENGTH - 6
    assert not rig.said["a"].departed


def test_a_job_that_ends_early_frees_both_samplers() -> None:
    one = resumed(text(), [1, 2, 3])
    rig = Rig()
    rig.add(Attempt("a", 2, 5, 1e6, [one]))

    rig.end("a", "cancelled")

    assert all(isinstance(sampler, FakeSampler) and sampler.closed for sampler in (one.sampler, one.spare))
