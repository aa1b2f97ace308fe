"""Who gets a slot, and who makes way: priorities, jobs that run alone, sequences that are set aside and come back."""

from __future__ import annotations

import pytest

from celery_llama_worker.engine.plan import Drop, Load, Save
from celery_llama_worker.engine.scheduling.sequence import Attempt
from celery_llama_worker.engine.scheduling.waiting import MOST_SET_ASIDE
from tests.fakes import FakeSampler
from tests.stepping import Rig, attempt, chunks_of, rows_of, sequence

PROMPT = list(range(40, 49))
SYSTEM = list(range(100, 112))


def job(
    name: str,
    *,
    priority: int = 5,
    max_tokens: int = 12,
    exclusive: bool = False,
    negative: tuple[int, ...] = (),
    prompt: list[int] = PROMPT,
    seed: int = 1,
) -> Attempt:
    text = sequence(prompt, max_tokens=max_tokens, negative=negative, sampler=FakeSampler(seed))
    return attempt(name, text, priority=priority, exclusive=exclusive)


def said_alone(one: Attempt) -> dict[int, list[int]]:
    rig = Rig(rounding=True)
    rig.run(one)
    return rig.said[one.job_id].tokens


def operations(rig: Rig, *kinds: type) -> list[str]:
    return [type(o).__name__ for plan in rig.engine.plans for o in plan.operations if isinstance(o, kinds)]


# making way


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8], ids=lambda steps: f"after {steps} steps")
def test_an_urgent_job_takes_a_less_urgent_ones_slot_which_then_goes_on_as_if_nothing_had_been(steps: int) -> None:
    rig = Rig(slots=1, rounding=True)
    rig.add(job("slow", priority=9))
    rig.steps(steps)
    rig.add(job("urgent", priority=0, seed=2))
    rig.step()

    assert rig.said["urgent"].began
    rig.run()
    assert rig.said["slow"].tokens == said_alone(job("slow"))
    assert rig.said["urgent"].tokens == said_alone(job("urgent", seed=2))


def test_decoded_cells_are_kept_in_host_memory_and_read_ones_are_read_again() -> None:
    decoding, reading = Rig(slots=1), Rig(slots=1)
    for rig, steps in ((decoding, 5), (reading, 1)):
        rig.add(job("slow", priority=9))
        rig.steps(steps)
        rig.run(job("urgent", priority=0))

    assert operations(decoding, Save, Load) == ["Save", "Load"]
    assert operations(reading, Save, Load) == []


def test_cells_that_nobody_will_come_back_for_are_dropped() -> None:
    rig = Rig(slots=1)
    rig.add(job("slow", priority=9))
    rig.steps(5)
    rig.add(job("urgent", priority=0))
    rig.step()
    assert rig.engine.saved

    rig.end("slow", "cancelled")
    rig.run()

    assert operations(rig, Drop) == ["Drop"]
    assert not rig.engine.saved


def test_equals_wait_for_each_other() -> None:
    rig = Rig(slots=1)
    rig.add(job("first"))
    rig.steps(4)
    rig.add(job("second"))
    rig.run()

    assert rig.scheduler.counters.set_aside == 0


def test_the_least_urgent_and_among_those_the_latest_makes_way() -> None:
    rig = Rig(slots=3)
    rig.add(job("a", priority=9), job("b", priority=9), job("c", priority=6))
    rig.steps(4)
    rig.add(job("urgent", priority=0))
    rig.step()
    served = {name: len(said.tokens.get(0, [])) for name, said in rig.said.items()}
    rig.step()

    assert {name for name, said in rig.said.items() if len(said.tokens.get(0, [])) == served[name]} == {"b"}


def test_nobody_makes_way_for_ever() -> None:
    rig = Rig(slots=1)
    rig.add(attempt("slow", sequence(PROMPT, max_tokens=40, sampler=FakeSampler(says=[1] * 40)), priority=9))
    for number in range(MOST_SET_ASIDE + 3):
        rig.steps(6)
        rig.add(job(f"urgent-{number}", priority=0, max_tokens=3))
    rig.run()

    assert rig.scheduler.counters.set_aside == MOST_SET_ASIDE
    assert rig.said["slow"].tokens == {0: [1] * 40}


def test_a_job_that_was_set_aside_still_has_its_deadline() -> None:
    rig = Rig(slots=1)
    slow = job("slow", priority=9)
    slow.timeout_seconds = 10.0
    rig.add(slow)
    rig.steps(5)
    rig.add(job("urgent", priority=0))
    rig.steps(2)
    rig.now = 10.0
    rig.step()

    assert rig.said["slow"].reasons == {0: "timeout"}
    rig.run()
    assert not rig.engine.saved


# jobs that run alone


def test_an_exclusive_job_runs_when_all_others_have_ended_and_nobody_joins_it() -> None:
    rig = Rig()
    rig.add(job("before", max_tokens=4))
    rig.steps(2)
    rig.add(job("alone", exclusive=True, prompt=PROMPT[::-1]), job("after"))
    while not rig.said["before"].end:
        rig.step()
    assert not rig.said["alone"].began

    while not rig.said["alone"].end:
        plan = rig.step()
        assert sum(len(call) for call in plan.calls) == 1

    assert not rig.said["after"].began
    rig.run()


def test_an_exclusive_job_shares_no_cells() -> None:
    rig = Rig()
    rig.run(job("before", prompt=[*SYSTEM, 1]))
    rig.run(job("alone", prompt=[*SYSTEM, 2], exclusive=True))
    rig.run(job("after", prompt=[*SYSTEM, 3]))

    assert [rig.said[name].began[0].cached_tokens for name in ("before", "alone", "after")] == [0, 0, 12]


def test_the_choices_of_an_exclusive_job_run_together() -> None:
    rig = Rig()
    rig.run(
        attempt("alone", *(sequence(PROMPT, choice=n, sampler=FakeSampler(n)) for n in range(3)), exclusive=True),
        job("after"),
    )

    assert rig.scheduler.counters.largest_batch == 3


# guided pairs


def test_a_guided_sequence_and_its_negative_prompt_take_a_slot_each() -> None:
    rig = Rig(slots=3)
    rig.add(job("pair", negative=(3, 4, 5)), job("one"), job("two"))
    rig.step()

    assert rig.scheduler.counters.active == 3
    assert not rig.said["two"].began


def test_a_pair_waits_until_there_are_two_slots() -> None:
    rig = Rig(slots=2)
    rig.add(job("one", max_tokens=4), job("pair", negative=(3, 4, 5)))
    rig.steps(3)
    assert not rig.said["pair"].began

    rig.run()

    assert rig.said["pair"].end


@pytest.mark.parametrize("negative", [(3,), (3, 4, 5), tuple(range(20, 37))], ids=len)
def test_both_prompts_of_a_pair_are_read_and_then_decode_side_by_side(negative: tuple[int, ...]) -> None:
    rig = Rig(rounding=True)
    rig.add(job("pair", negative=negative, max_tokens=5))
    plans = []
    while not rig.scheduler.idle:
        plans.append(rig.step())

    assert [len(rows_of(plan)) for plan in plans if rows_of(plan)] == [2] * len(rig.said["pair"].tokens[0])
    assert sum(len(piece.tokens) for plan in plans for piece in chunks_of(plan)) == len(PROMPT) + len(negative) - 2


def test_a_pair_says_the_same_among_others() -> None:
    def pair() -> Attempt:
        return job("pair", negative=(3, 4, 5, 6, 7))

    rig = Rig(rounding=True)
    rig.add(job("a"), job("b", prompt=PROMPT[::-1]))
    rig.steps(2)
    rig.run(pair())

    assert rig.said["pair"].tokens == said_alone(pair())


def test_a_pair_is_set_aside_and_comes_back_as_a_pair() -> None:
    rig = Rig(slots=2, rounding=True)
    rig.add(job("pair", negative=(3, 4, 5), priority=9))
    rig.steps(6)
    rig.run(job("urgent", priority=0))

    assert operations(rig, Save, Load) == ["Save", "Save", "Load", "Load"]
    assert rig.said["pair"].tokens == said_alone(job("pair", negative=(3, 4, 5)))


def test_a_cancelled_pair_gives_both_slots_back() -> None:
    rig = Rig(slots=2)
    rig.add(job("pair", negative=(3, 4, 5)))
    rig.steps(5)
    rig.end("pair", "cancelled")
    rig.add(job("one"), job("two"))
    rig.step()

    assert rig.scheduler.counters.active == 2
    rig.run()
