"""Whatever comes, goes, fails or is more urgent: each job says what it would say if it were alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_llama_worker.engine.outputs import Ended, EndReason
from celery_llama_worker.engine.plan import CallError, Piece
from celery_llama_worker.engine.scheduling.sequence import Attempt
from tests.fakes import FakeSampler
from tests.stepping import Rig, Said, attempt, rows_of, sequence

SLOTS, CELLS, CHUNK = 3, 64, 4
#: Prompts begin with one of these, so that many share something.
BEGINNINGS = [[], [1] * 8, [1] * 4 + [2] * 7, list(range(100, 121))]


class Layout(NamedTuple):
    """What the engine's cells are like."""

    #: Tokens depend also on where the text before them was cut into pieces.
    rounding: bool = False
    #: All slots have one pool of cells.
    shared_cells: bool = False
    #: Host memory for the prefixes of slots that others get, a byte a cell.
    store_bytes: int = 0


PLAIN, EXACT = Layout(), Layout(rounding=True)


@dataclass(frozen=True)
class Story:
    """A job, when it comes, and what becomes of it."""

    comes_at: int
    beginning: int
    own_tokens: int
    max_tokens: int
    choices: int = 1
    priority: int = 5
    stop: tuple[str, ...] = ()
    negative_tokens: int = 0
    exclusive: bool = False
    #: Some cells are computed with an adapter, and are of no use to those without it.
    adapted: bool = False
    #: It is ended so many steps after it came.
    ended_after: int | None = None
    end_reason: EndReason = "cancelled"
    #: The first choice's sampler fails at this token.
    fault_at: int | None = None
    #: Calls with its first choice fail from this position on, and take all cells with them or not.
    breaks_at: int | None = None
    loses_cells: bool = False


STORIES = st.builds(
    Story,
    comes_at=st.integers(0, 12),
    beginning=st.integers(0, len(BEGINNINGS) - 1),
    own_tokens=st.integers(1, 10),
    max_tokens=st.integers(1, 14),
    choices=st.sampled_from([1, 1, 1, 2, 3]),
    priority=st.sampled_from([0, 5, 5, 9]),
    stop=st.sampled_from([(), (), ("a",), ("bc", "c"), ("é",)]),
    exclusive=st.sampled_from([False, False, False, True]),
    negative_tokens=st.sampled_from([0, 0, 0, 3, 17]),
    adapted=st.sampled_from([False, False, True]),
    ended_after=st.none() | st.integers(0, 20),
    end_reason=st.sampled_from(["cancelled", "failed", "handed_back", "dropped", "timeout"]),
)
TROUBLED = st.builds(
    replace,
    STORIES,
    fault_at=st.none() | st.integers(1, 6),
    breaks_at=st.none() | st.integers(0, 30),
    loses_cells=st.booleans(),
)


def job(number: int, story: Story) -> tuple[Attempt, list[FakeSampler]]:
    """The story's job and its samplers."""
    width = 2 if story.negative_tokens else 1
    choices = min(story.choices, SLOTS // width)
    prompt = [*BEGINNINGS[story.beginning], *(50 + (number + at) % 3 for at in range(story.own_tokens))]
    negative = [60 + number % 2] * story.negative_tokens
    room = CELLS // width - max(len(prompt), len(negative))
    samplers = [FakeSampler(10 * number + n, fault_at=None if n else story.fault_at) for n in range(choices)]
    sequences = [
        sequence(
            prompt,
            choice=n,
            max_tokens=min(story.max_tokens, room),
            stop=story.stop,
            sampler=sampler,
            negative=negative,
            adapters=(("one", 0.5),) if story.adapted else (),
        )
        for n, sampler in enumerate(samplers)
    ]
    owner = attempt(f"job-{number}", *sequences, priority=story.priority, exclusive=story.exclusive)
    return owner, samplers


def run(stories: dict[int, Story], errors: Sequence[CallError | None] = (), layout: Layout = PLAIN) -> Rig:
    """Play the stories; check what holds when all is over."""
    rig = Rig(slots=SLOTS, cells=CELLS, chunk=CHUNK, prefill=2 * CHUNK, **layout._asdict())
    rig.engine.failures = deque(errors)
    jobs = {number: job(number, story) for number, story in stories.items()}
    rig.engine.breaks = breaking(jobs, stories)
    for step in range(40):
        for number, story in stories.items():
            if step == story.comes_at:
                rig.add(jobs[number][0])
            elif story.ended_after is not None and step == story.comes_at + story.ended_after:
                rig.end(f"job-{number}", story.end_reason)
        if not rig.scheduler.idle:
            rig.step()
            check_exclusive(rig, jobs)
    rig.run(within=3000)
    check_that_all_is_given_back(rig, layout.store_bytes)
    assert all(sampler.closed for _, samplers in jobs.values() for sampler in samplers)
    return rig


def breaking(
    jobs: dict[int, tuple[Attempt, list[FakeSampler]]], stories: dict[int, Story]
) -> Callable[[Piece], CallError | None]:
    """Which pieces cannot be computed."""
    fatal = {id(jobs[number][1][0]): story for number, story in stories.items() if story.breaks_at is not None}

    def breaks(piece: Piece) -> CallError | None:
        story = fatal.get(id(piece.sampler))
        if story is None or story.breaks_at is None or piece.start + len(piece.tokens) <= story.breaks_at:
            return None
        return CallError("it breaks", story.loses_cells)

    return breaks


def check_exclusive(rig: Rig, jobs: dict[int, tuple[Attempt, list[FakeSampler]]]) -> None:
    """An exclusive job shares a step with nobody."""
    samplers = {piece.sampler for call in rig.engine.plans[-1].calls for piece in call}
    present = [one for one, owned in jobs.values() if samplers & set(owned)]
    assert len(present) <= 1 or not any(one.exclusive for one in present)


def check_that_all_is_given_back(rig: Rig, store_bytes: int) -> None:
    """Every slot can be had again, and no cells are kept for anybody."""
    counters = rig.scheduler.counters
    assert (counters.active, counters.waiting, counters.cells_used) == (0, 0, 0)
    rig.engine.failures.clear()
    rig.add(*(attempt(f"after-{n}", sequence([9], max_tokens=1)) for n in range(SLOTS)))
    assert len(rows_of(rig.step())) == SLOTS
    stored = sum(len(cells) for key, cells in rig.engine.saved.items() if key < 0)
    assert stored <= store_bytes
    assert all(key < 0 for key in rig.engine.saved), "only stored prefixes are kept"
    assert rig.scheduler.idle


def check_against_alone(number: int, story: Story, said: Said, layout: Layout) -> None:
    """The job said what it says when it is alone, or a beginning of it."""
    alone = run({number: replace(story, comes_at=0, ended_after=None)}, layout=layout)
    expected = alone.said[f"job-{number}"]
    assert said.end is not None
    if said.end.reason == "done":
        assert (said.tokens, said.texts, said.reasons) == (expected.tokens, expected.texts, expected.reasons)
        return
    for choice, tokens in said.tokens.items():
        whole = expected.tokens.get(choice, [])
        shorter = min(len(tokens), len(whole))
        assert tokens[:shorter] == whole[:shorter]
        # A choice may have got further here than alone only if a sibling's failure was what ended the job.
        assert len(tokens) <= len(whole) or expected.end != Ended(f"job-{number}", 1, "done")


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STORIES, min_size=1, max_size=7), st.sampled_from([0, 9, 24, 99]))
def test_every_job_says_what_it_says_alone_to_the_last_bit(stories: list[Story], store_bytes: int) -> None:
    numbered = dict(enumerate(stories))
    rig = run(numbered, layout=EXACT._replace(store_bytes=store_bytes))

    for number, story in numbered.items():
        check_against_alone(number, story, rig.said[f"job-{number}"], EXACT)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(TROUBLED, min_size=1, max_size=6),
    st.lists(st.none() | st.builds(CallError, st.just("by chance"), st.booleans()), max_size=25),
    st.sampled_from([0, 24]),
)
def test_failures_end_the_jobs_that_cause_them_and_change_nothing_for_the_others(
    stories: list[Story], errors: list[CallError | None], store_bytes: int
) -> None:
    check_with_failures(stories, errors, Layout(store_bytes=store_bytes))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(TROUBLED, min_size=1, max_size=6),
    st.lists(st.none() | st.builds(CallError, st.just("by chance"), st.booleans()), max_size=25),
)
def test_the_same_holds_where_all_slots_share_one_pool_of_cells(
    stories: list[Story], errors: list[CallError | None]
) -> None:
    check_with_failures(stories, errors, Layout(shared_cells=True))


def check_with_failures(stories: list[Story], errors: list[CallError | None], layout: Layout = PLAIN) -> None:
    """Play the stories and compare each job with itself alone."""
    numbered = dict(enumerate(stories))
    rig = run(numbered, errors, layout)
    for number, story in numbered.items():
        said = rig.said[f"job-{number}"]
        assert said.end is not None
        if said.end.error is not None and said.end.error.message == "by chance":
            continue  # it was alone in a call that failed
        check_against_alone(number, story, said, layout)
