"""What a step computes and what comes of it: batching, chunks, ends, cancels, deadlines, priorities."""

from __future__ import annotations

import math

import pytest

from celery_llama.protocol.results import JobError
from celery_llama_worker.engine.outputs import Ended
from celery_llama_worker.engine.pace import Speed
from celery_llama_worker.engine.plan import Limits, Trim
from celery_llama_worker.engine.scheduling.scheduler import PROGRESS_TOKENS, GenerateScheduler
from celery_llama_worker.engine.scheduling.sequence import Attempt
from tests.fakes import FakeSampler
from tests.stepping import VOCABULARY, Rig, Said, attempt, chunks_of, letters, rows_of, sequence

PROMPT = [11, 12, 13]
LONG = list(range(20, 50))


def job(
    job_id: str, prompt: list[int], *, priority: int = 5, timeout_seconds: float = 1e6, max_tokens: int = 8
) -> Attempt:
    """A job with one choice that goes on for as long as it may."""
    endless = FakeSampler(says=[1] * 100)
    return attempt(
        job_id,
        sequence(prompt, sampler=endless, max_tokens=max_tokens),
        priority=priority,
        timeout_seconds=timeout_seconds,
    )


# batching


def test_all_sequences_that_decode_share_one_call() -> None:
    rig = Rig(prefill=12)
    rig.add(*(job(name, PROMPT) for name in "abcd"))
    rig.steps(2)

    plan = rig.step()

    assert [len(call) for call in plan.calls] == [4]


def test_decoding_sequences_get_their_row_before_any_chunk_of_a_prompt() -> None:
    rig = Rig()
    rig.add(job("decoding", PROMPT))
    rig.step()
    rig.add(job("reading", LONG, priority=0))

    plan = rig.step()

    assert [[len(piece.tokens) for piece in call] for call in plan.calls] == [[1], [4]]


def test_a_long_prompt_delays_its_neighbours_by_one_chunk_a_step() -> None:
    rig = Rig(prefill=8)
    rig.add(job("decoding", PROMPT, max_tokens=30))
    rig.step()
    rig.add(job("reading", LONG))

    plans = [rig.step() for _ in range(8)]

    assert all(len(rows_of(plan)) >= 1 for plan in plans)
    assert [[len(piece.tokens) for piece in chunks_of(plan)] for plan in plans] == [[4]] * 7 + [[2]]


def test_prompts_are_cut_at_the_same_places_whoever_else_is_there() -> None:
    def cuts(rig: Rig) -> list[tuple[int, int]]:
        plans = [rig.step() for _ in range(40)]
        pieces = [piece for plan in plans for piece in chunks_of(plan) if set(piece.tokens) <= set(LONG)]
        return [(piece.start, len(piece.tokens)) for piece in pieces]

    alone, crowded = Rig(prefill=8), Rig(prefill=8)
    alone.add(job("long", LONG, max_tokens=100))
    crowded.add(job("other", [3] * 7, priority=0), job("long", LONG, max_tokens=100), job("short", [4, 5], priority=0))

    assert cuts(alone) == cuts(crowded) == [(start, 4) for start in range(0, 28, 4)] + [(28, 2)]


def test_equal_chunks_are_read_in_one_call_and_unequal_ones_in_calls_of_their_own() -> None:
    rig = Rig(prefill=12)
    rig.add(job("a", [1] * 9), job("b", [2] * 10), job("c", [3] * 3))

    plan = rig.step()

    assert [[len(piece.tokens) for piece in call] for call in plan.calls] == [[4, 4], [3]]


def test_a_step_reads_no_more_than_its_budget() -> None:
    rig = Rig(prefill=9)
    rig.add(job("a", [1] * 20), job("b", [2] * 20), job("c", [3] * 20))

    assert [sum(len(piece.tokens) for piece in chunks_of(rig.step())) for _ in range(3)] == [8, 8, 8]


def test_a_step_is_bounded_by_time_on_a_slow_machine_and_prompts_are_cut_at_the_same_places() -> None:
    """A step of 32 tokens would take 32 s here, and who is silent for so long loses its jobs to others."""
    jobs = [list(range(first, first + 15)) for first in (20, 50, 80, 110)]
    fast, slow = (Rig(prefill=32, step_seconds=step, speed=Speed(1.0, 4.0)) for step in (math.inf, 9.0))
    slow.engine.seconds_per_token = 1.0

    together, apart = (rig.watch(*(job(str(prompt[0]), prompt) for prompt in jobs)) for rig in (fast, slow))

    assert max(sum(len(piece.tokens) for piece in chunks_of(plan)) for plan in together) == 16
    assert {sum(len(piece.tokens) for piece in chunks_of(plan)) for plan in apart} <= {0, 3, 4, 6, 7, 8}
    assert slow.said == fast.said


def test_a_chunk_is_read_even_if_it_takes_longer_than_a_step_should() -> None:
    rig = Rig(step_seconds=1.0, speed=Speed(5.0, 4.0))

    plans = rig.watch(job("a", LONG), job("b", LONG[::-1]))

    assert {len(piece.tokens) for plan in plans for piece in chunks_of(plan)} == {4, 2}
    assert all(len(chunks_of(plan)) <= 1 for plan in plans)
    assert rig.scheduler.counters.longest_call_seconds == 20.0


def test_a_machine_that_becomes_slow_reads_less_in_a_step() -> None:
    rig = Rig(prefill=16, step_seconds=16.0, speed=Speed(0.01, 0.1), cells=256)
    rig.engine.seconds_per_token = 4.0
    prompts = [list(range(first, first + 90)) for first in (0, 100)]

    plans = rig.watch(*(job(str(number), prompt) for number, prompt in enumerate(prompts)))

    assert len(chunks_of(plans[0])) == 2
    assert len(chunks_of(plans[20])) == 1


def test_the_more_urgent_prompt_is_read_first() -> None:
    rig = Rig(prefill=4)
    rig.add(job("later", [1] * 8), job("urgent", [2] * 8, priority=0))

    assert [chunks_of(rig.step())[0].tokens[0] for _ in range(4)] == [2, 2, 1, 1]


def test_sequences_join_and_leave_a_batch_at_any_step() -> None:
    rig = Rig()
    rig.add(job("a", PROMPT, max_tokens=6))
    sizes = []
    for joins in (None, "b", "c", None, None, None):
        if joins:
            rig.add(job(joins, PROMPT, max_tokens=3))
        sizes.append(len(rows_of(rig.step())))

    assert sizes == [0, 1, 2, 3, 2, 1]
    assert rig.scheduler.idle


def test_a_job_that_waits_for_a_slot_is_in_the_step_after_one_falls_free() -> None:
    rig = Rig(slots=1)
    rig.add(job("first", PROMPT, max_tokens=2), job("second", PROMPT, max_tokens=2))
    rig.steps(2)
    assert rig.said["first"].end

    rig.step()

    assert rig.said["second"].began


def test_slots_go_to_the_more_urgent_and_then_to_the_earlier() -> None:
    rig = Rig(slots=1)
    order: list[str] = []
    for name, priority in [("running", 0), ("late", 9), ("early", 5), ("next", 5), ("urgent", 0)]:
        rig.add(job(name, PROMPT, max_tokens=1, priority=priority))
        if name == "running":
            rig.scheduler.plan(0.0)  # it has the slot already when the others come
    while not rig.scheduler.idle:
        running = set(rig.scheduler.job_ids)
        rig.step()
        order += running - set(rig.scheduler.job_ids)

    assert order == ["running", "urgent", "early", "next", "late"]


# how a text ends


def test_max_tokens_ends_a_text_with_length() -> None:
    rig = Rig()
    rig.run(job("a", PROMPT, max_tokens=5))

    assert (rig.said["a"].tokens[0], rig.said["a"].reasons[0]) == ([1] * 5, "length")
    assert rig.said["a"].end == Ended("a", 1, "done")


def test_a_full_slot_ends_a_text_with_length() -> None:
    rig = Rig(cells=16)
    rig.run(job("a", [5] * 10, max_tokens=1000))

    assert (len(rig.said["a"].tokens[0]), rig.said["a"].reasons[0]) == (6, "length")


def test_a_prompt_that_leaves_one_cell_gets_one_token() -> None:
    rig = Rig(cells=16)
    rig.run(job("a", [5] * 15, max_tokens=1000))

    assert len(rig.said["a"].tokens[0]) == 1


def test_an_end_token_ends_a_text_with_stop_and_is_not_part_of_it() -> None:
    rig = Rig()
    rig.run(attempt("a", sequence(PROMPT, sampler=FakeSampler(says=[*letters("hi"), 250]))))

    assert (rig.said["a"].texts[0], rig.said["a"].tokens[0], rig.said["a"].reasons[0]) == ("hi", letters("hi"), "stop")


def test_an_end_token_at_once_gives_an_empty_text() -> None:
    rig = Rig()
    rig.run(attempt("a", sequence(PROMPT, sampler=FakeSampler(says=[250]))))

    assert (rig.said["a"].texts[0], rig.said["a"].tokens[0], rig.said["a"].reasons[0]) == ("", [], "stop")


def test_a_stop_string_ends_a_text_before_it() -> None:
    rig = Rig()
    says = FakeSampler(says=letters("onestoptwo"))
    rig.run(attempt("a", sequence(PROMPT, stop=["stop"], max_tokens=20, sampler=says)))

    assert (rig.said["a"].texts[0], rig.said["a"].reasons[0]) == ("one", "stop")
    assert rig.said["a"].tokens[0] == letters("onestop"), "what was sampled is reported, what was cut off too"


@pytest.mark.parametrize(("max_tokens", "reason"), [(6, "length"), (20, "stop")])
def test_held_text_is_released_with_its_tokens_when_the_text_ends(max_tokens: int, reason: str) -> None:
    rig = Rig()
    says = FakeSampler(says=[*letters("onesto"), 250])
    rig.run(attempt("a", sequence(PROMPT, stop=["stop"], max_tokens=max_tokens, sampler=says)))

    assert (rig.said["a"].texts[0], rig.said["a"].reasons[0]) == ("onesto", reason)
    assert rig.said["a"].tokens[0] == letters("onesto")


def test_tokens_are_told_with_the_text_that_they_are_part_of() -> None:
    rig = Rig()
    says = FakeSampler(says=letters("asto"))
    rig.add(attempt("a", sequence(PROMPT, stop=["stop"], max_tokens=20, sampler=says)))
    rig.steps(4)

    assert (rig.said["a"].texts[0], rig.said["a"].tokens[0]) == ("a", letters("a"))


def test_a_stop_string_found_in_the_text_held_at_the_very_end_is_a_stop() -> None:
    rig = Rig()
    says = FakeSampler(says=letters("xab"))
    rig.run(attempt("a", sequence(PROMPT, stop=["abc", "b"], max_tokens=3, sampler=says)))

    assert (rig.said["a"].texts[0], rig.said["a"].reasons[0]) == ("xa", "stop")


# n choices


def test_a_job_ends_when_all_of_its_choices_have_ended() -> None:
    rig = Rig()
    rig.add(
        attempt("a", *(sequence(PROMPT, choice=n, max_tokens=2 + n, sampler=FakeSampler(says=[n] * 9)) for n in (0, 1)))
    )
    rig.steps(3)
    assert rig.said["a"].reasons == {0: "length"}
    assert rig.said["a"].end is None

    rig.steps(1)

    assert rig.said["a"].tokens == {0: [0] * 2, 1: [1] * 3}
    assert rig.said["a"].end


def test_a_job_may_have_as_many_choices_as_there_are_slots_and_more_jobs_wait() -> None:
    rig = Rig(slots=3)
    rig.run(
        attempt(
            "many", *(sequence(PROMPT, choice=n, max_tokens=4, sampler=FakeSampler(says=[n] * 9)) for n in range(3))
        ),
        job("one", PROMPT, max_tokens=2),
    )

    assert rig.said["many"].tokens == {n: [n] * 4 for n in range(3)}
    assert rig.said["one"].tokens == {0: [1, 1]}


def test_choices_read_their_prompt_once_but_for_its_last_token() -> None:
    prompt = [*range(11)]  # two chunks, two tokens more, and the last one
    negative = [*range(20, 27)]
    rig = Rig(slots=6)
    plans = rig.watch(
        attempt(
            "a", *(sequence(prompt, choice=n, negative=negative, sampler=FakeSampler(says=[n] * 9)) for n in range(3))
        )
    )
    read = [token for plan in plans for piece in chunks_of(plan) for token in piece.tokens]

    assert sorted(read) == [*prompt[:-1], *negative[:-1]]
    assert rig.said["a"].tokens == {n: [n] * 8 for n in range(3)}


def test_a_choice_that_comes_later_copies_the_prompt_from_one_that_is_running() -> None:
    prompt = [*range(7)]
    rig = Rig(slots=2)
    rig.add(job("other", [9] * 3, max_tokens=4))
    plans = rig.watch(attempt("a", *(sequence(prompt, choice=n, max_tokens=12) for n in range(2))))
    read = [token for plan in plans for piece in chunks_of(plan) for token in piece.tokens if token != 9]

    assert sorted(read) == prompt[:-1]


def test_other_jobs_copy_whole_chunks_only() -> None:
    prompt = [*range(7)]
    rig = Rig(slots=4)
    plans = rig.watch(
        attempt("a", sequence(prompt, choice=0), sequence(prompt, choice=1)),
        attempt("b", sequence(prompt, choice=0), sequence(prompt, choice=1)),
    )
    read = [token for plan in plans for piece in chunks_of(plan) for token in piece.tokens]

    assert sorted(read) == sorted([*prompt[:-1], *prompt[4:-1]])


# resuming


def test_a_choice_that_an_earlier_attempt_finished_is_reported_finished() -> None:
    rig = Rig()
    done, open_ = sequence(PROMPT, choice=0), sequence(PROMPT, choice=1, max_tokens=2)
    done.finish_reason = "stop"
    rig.run(attempt("a", done, open_, number=2))

    assert rig.said["a"].reasons == {0: "stop", 1: "length"}
    assert rig.said["a"].texts[0] == ""


def test_a_job_that_was_complete_but_for_its_last_event_ends_at_once() -> None:
    rig = Rig()
    done = sequence(PROMPT)
    done.finish_reason = "length"
    rig.add(attempt("a", done, number=2))

    assert rig.said["a"].reasons == {0: "length"}
    assert rig.said["a"].end == Ended("a", 2, "done")
    assert rig.scheduler.idle


def test_a_resumed_text_goes_on_where_it_was() -> None:
    whole, resumed = Rig(), Rig()
    whole.run(attempt("a", sequence(PROMPT, max_tokens=10, sampler=FakeSampler(3))))
    tokens = whole.said["a"].tokens[0]
    rest = sequence(PROMPT + tokens[:4], max_tokens=10, sampler=FakeSampler(3))
    rest.prompt_tokens = len(PROMPT)
    resumed.run(attempt("a", rest, number=2))

    assert len(tokens) > 4
    assert resumed.said["a"].tokens[0] == tokens[4:]


# cancels


@pytest.mark.parametrize("steps", [0, 1, 3, 9, 12], ids=["waiting", "assigned", "reading", "decoding", "longer"])
def test_a_cancel_in_any_phase_frees_the_slot_at_the_next_step(steps: int) -> None:
    rig = Rig(slots=1)
    rig.add(job("cancelled", LONG, max_tokens=30), job("next", PROMPT, max_tokens=1))
    rig.steps(steps)

    rig.end("cancelled", "cancelled")
    rig.step()

    assert rig.said["cancelled"].end == Ended("cancelled", 1, "cancelled")
    assert rig.said["cancelled"].reasons == {0: "cancelled"}
    assert rig.said["next"].end == Ended("next", 1, "done")
    assert rig.scheduler.idle


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 6])
def test_a_cancel_leaves_the_neighbours_texts_as_they_are(steps: int) -> None:
    def neighbour() -> Attempt:
        return attempt("neighbour", sequence(LONG[:9], max_tokens=12, sampler=FakeSampler(7)))

    alone, crowded = Rig(rounding=True), Rig(rounding=True)
    alone.run(neighbour())
    crowded.add(job("cancelled", LONG, max_tokens=30), neighbour(), job("other", PROMPT, max_tokens=9))
    crowded.steps(steps)
    crowded.end("cancelled", "cancelled")
    crowded.run()

    assert crowded.said["neighbour"].tokens == alone.said["neighbour"].tokens


def test_a_cancel_releases_the_text_that_was_held_back() -> None:
    rig = Rig()
    says = FakeSampler(says=letters("onestoptwo"))
    rig.add(attempt("a", sequence(PROMPT, stop=["stop"], max_tokens=20, sampler=says)))
    rig.steps(6)
    assert rig.said["a"].texts[0] == "one"

    rig.end("a", "cancelled")

    assert (rig.said["a"].texts[0], rig.said["a"].tokens[0]) == ("onesto", letters("onesto"))


@pytest.mark.parametrize("reason", ["handed_back", "dropped"])
def test_whoever_takes_the_job_over_decodes_the_held_tokens_again(reason: str) -> None:
    rig = Rig()
    says = FakeSampler(says=letters("onestoptwo"))
    rig.add(attempt("a", sequence(PROMPT, stop=["stop"], max_tokens=20, sampler=says)))
    rig.steps(6)

    rig.end("a", reason)  # type: ignore[arg-type]

    assert (rig.said["a"].tokens[0], rig.said["a"].reasons) == (letters("one"), {})
    assert rig.said["a"].end == Ended("a", 1, reason)  # type: ignore[arg-type]


def test_ending_a_job_that_is_not_here_says_nothing() -> None:
    rig = Rig()
    rig.run(job("a", PROMPT, max_tokens=1))

    rig.end("a", "cancelled")
    rig.end("unknown", "cancelled")


@pytest.mark.parametrize("reason", ["cancelled", "failed", "handed_back", "dropped"])
def test_a_job_that_ended_while_it_waited_and_comes_again_has_one_slot(reason: str) -> None:
    rig = Rig(slots=1)
    rig.add(job("running", PROMPT, max_tokens=3), job("again", PROMPT, max_tokens=9))
    rig.step()
    rig.end("again", reason)  # type: ignore[arg-type]
    rig.add(attempt("again", sequence(PROMPT, max_tokens=2, sampler=FakeSampler(says=[2] * 9)), number=2))
    rig.run()

    assert rig.said["again"].tokens == {0: [2, 2]}
    assert rig.said["again"].end == Ended("again", 2, "done")
    rig.run(job("after", PROMPT, max_tokens=1))


def test_a_later_attempt_takes_an_earlier_ones_place() -> None:
    rig = Rig(slots=1)
    rig.add(job("a", PROMPT, max_tokens=9))
    rig.steps(2)

    outputs = rig.scheduler.add(
        attempt("a", sequence(PROMPT, max_tokens=2, sampler=FakeSampler(says=[2] * 9)), number=2)
    )
    rig.said["a"] = Said()
    rig.run()

    assert outputs == [Ended("a", 1, "dropped")]
    assert rig.said["a"].tokens == {0: [2, 2]}


def test_every_sampler_is_closed_however_its_job_ends() -> None:
    samplers = [FakeSampler(says=[1] * 50) for _ in range(4)]
    rig = Rig(slots=2)
    for name, sampler in zip("abcd", samplers, strict=True):
        rig.add(attempt(name, sequence(PROMPT, max_tokens=6, sampler=sampler)))
    rig.steps(3)
    rig.end("b", "cancelled")
    rig.end("d", "handed_back")
    rig.run()

    assert all(sampler.closed for sampler in samplers)


# deadlines


def test_a_job_ends_with_what_it_has_when_its_time_is_up() -> None:
    rig = Rig()
    rig.add(job("a", PROMPT, timeout_seconds=10.0, max_tokens=30))
    rig.steps(3)
    rig.now = 9.9
    rig.step()
    rig.now = 10.0
    rig.note(rig.scheduler.expire(rig.now))

    assert (rig.said["a"].tokens[0], rig.said["a"].reasons[0]) == ([1] * 4, "timeout")
    assert rig.said["a"].end == Ended("a", 1, "timeout")


def test_time_in_the_queue_does_not_count() -> None:
    rig = Rig(slots=1)
    rig.add(job("first", PROMPT, max_tokens=3), job("second", PROMPT, timeout_seconds=10.0, max_tokens=3))
    rig.steps(2)
    rig.now = 1000.0
    rig.steps(2)
    rig.now = 1009.0
    rig.run()

    assert rig.said["second"].reasons == {0: "length"}


def test_time_goes_on_while_a_choice_waits_for_its_slot() -> None:
    rig = Rig(slots=1)
    first, second = (sequence(PROMPT, choice=n, max_tokens=2, sampler=FakeSampler(says=[1] * 9)) for n in (0, 1))
    rig.add(attempt("two", first, second, timeout_seconds=10.0))
    rig.step()
    rig.add(job("urgent", PROMPT, max_tokens=20, priority=0))
    rig.steps(9)
    rig.now = 11.0
    rig.step()

    assert rig.said["two"].reasons == {0: "timeout", 1: "timeout"}
    assert not rig.said["urgent"].end


# progress and figures


def test_a_long_prompt_reports_how_far_it_has_been_read() -> None:
    rig = Rig(cells=2048, chunk=64, prefill=256)
    rig.run(job("long", [7, 8] * 600, max_tokens=1), job("short", [9] * PROGRESS_TOKENS, max_tokens=1))

    assert [output.read_tokens for output in rig.said["long"].reads] == [512, 1024]
    assert rig.said["short"].reads == []


def test_only_the_first_choice_reports_progress() -> None:
    rig = Rig(cells=2048, chunk=64, prefill=256)
    rig.run(attempt("two", *(sequence([7, 8] * 600, choice=n, max_tokens=1) for n in (0, 1))))

    assert [output.read_tokens for output in rig.said["two"].reads] == [512, 1024]


def test_the_counters_say_what_was_done() -> None:
    rig = Rig(slots=2)
    rig.add(*(job(name, LONG[:9], max_tokens=3) for name in "ab"), job("c", [3] * 4, max_tokens=1))
    rig.step()
    counters = rig.scheduler.counters
    assert (counters.active, counters.waiting) == (2, 1)

    steps = 1 + rig.run()

    assert counters.steps == steps
    assert counters.generated_tokens == 7
    assert counters.copied_tokens == 8
    assert counters.largest_batch == 2
    assert counters.full_batches == 3
    assert counters.read_tokens == 8 + 4, "what is copied is not read, and a last token is decoded"


def test_an_idle_engine_says_that_nothing_is_active() -> None:
    rig = Rig(slots=1)
    rig.add(job("a", PROMPT, max_tokens=9), job("b", PROMPT, max_tokens=9), job("c", PROMPT, max_tokens=9))
    rig.steps(2)
    counters = rig.scheduler.counters
    assert (counters.active, counters.waiting, counters.cells_used > 0) == (1, 2, True)
    rig.end("c", "cancelled")
    assert (counters.active, counters.waiting) == (1, 1)
    rig.run()

    assert (counters.active, counters.waiting, counters.cells_used) == (0, 0, 0)


# failures of the engine


def test_a_sampler_that_fails_ends_its_own_job_only() -> None:
    rig = Rig()
    rig.run(
        attempt("broken", sequence(PROMPT, max_tokens=9, sampler=FakeSampler(says=[1] * 9, fault_at=3))),
        job("whole", PROMPT, max_tokens=9),
    )

    error = JobError(code="engine_error", message="the sampler is broken")
    assert rig.said["broken"].end == Ended("broken", 1, "failed", error)
    assert rig.said["broken"].tokens == {0: [1, 1]}
    assert rig.said["whole"].tokens == {0: [1] * 9}


def test_a_choice_whose_sampler_fails_takes_its_siblings_along() -> None:
    rig = Rig()
    samplers = FakeSampler(says=[1] * 9, fault_at=2), FakeSampler(says=[1] * 9)
    rig.run(
        attempt("a", *(sequence(PROMPT, choice=n, sampler=sampler) for n, sampler in enumerate(samplers))),
        job("other", PROMPT, max_tokens=9),
    )

    assert rig.said["a"].end is not None
    assert rig.said["a"].end.reason == "failed"
    assert rig.said["other"].reasons == {0: "length"}


def test_without_cells_that_can_be_cut_nothing_is_shared_or_moved() -> None:
    rig = Rig(can_trim=False)
    rig.run(*(job(name, LONG, max_tokens=3 + n) for n, name in enumerate("abcdef")))

    assert {operation for plan in rig.engine.plans for operation in plan.operations} <= {Trim(n, 0) for n in range(4)}
    assert rig.scheduler.counters.copied_tokens == 0


def test_without_a_spare_slot_nothing_is_moved() -> None:
    rig = Rig(slots=3)
    limits = Limits(slots=3, cells_per_slot=64, batch_tokens=8, can_trim=True, spare_slots=0)
    rig.engine.limits = limits
    rig.scheduler = GenerateScheduler(limits, VOCABULARY, chunk_tokens=4, prefill_tokens=8)
    rig.run(job("a", PROMPT, max_tokens=4), job("b", LONG, max_tokens=2), job("c", PROMPT, max_tokens=9))

    assert {said.reasons[0] for said in rig.said.values()} == {"length"}
