"""The unified memory: one pool of cells, never overdrawn, and nobody's job is ended for want of them."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_llama_worker.engine.plan import CallResult, CellOperation, Limits, Plan
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from tests.fakes import FakeEngine, FakeSampler
from tests.stepping import VOCABULARY, Rig, attempt, sequence

CHUNK, SLOTS = 4, 6


class PoolEngine(FakeEngine):
    """Counts the cells of all slots: a copied cell is the same cell, as in llama.cpp's unified layout."""

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        for result in super().execute(plan):
            self._count()
            yield result

    def _operate(self, operation: CellOperation) -> None:
        super()._operate(operation)
        self._count()

    def _count(self) -> None:
        used = len({id(cell) for cells in self.cells for cell in cells})
        assert used <= self.limits.cells_per_slot, f"{used} cells are in use"


class UnifiedRig(Rig):
    """A scheduler over a pool of cells."""

    def __init__(self, *, cells: int = 64, slots: int = SLOTS) -> None:
        super().__init__(slots=slots, cells=cells, chunk=CHUNK)
        limits = Limits(slots, cells, 16, can_trim=True, shared_cells=True)
        self.engine = PoolEngine(limits)
        self.scheduler = GenerateScheduler(limits, VOCABULARY, chunk_tokens=CHUNK, prefill_tokens=8)


def says(count: int) -> FakeSampler:
    """A sampler that never ends by itself within so many tokens."""
    return FakeSampler(says=[1] * count)


def test_a_job_that_counted_on_a_prefix_which_had_to_go_waits_for_cells_of_its_own() -> None:
    rig = UnifiedRig(cells=66)
    rig.run(attempt("kept", sequence([7] * 33, max_tokens=1)))
    rig.run(attempt("s1", sequence([1] * 56, max_tokens=4)), attempt("s2", sequence([7] * 34, max_tokens=4)))

    assert {said.end.reason for said in rig.said.values() if said.end} == {"done"}


def test_an_urgent_job_gets_cells_from_those_that_are_less_urgent() -> None:
    rig = UnifiedRig(cells=64, slots=4)
    rig.add(*(attempt(f"slow-{n}", sequence([n] * 20, max_tokens=8, sampler=says(8)), priority=9) for n in range(2)))
    rig.steps(6)
    rig.add(attempt("urgent", sequence([5] * 30, max_tokens=2), priority=0))
    rig.steps(10)

    assert rig.said["urgent"].end
    assert not rig.said["slow-1"].end
    rig.run()
    assert [len(rig.said[f"slow-{n}"].tokens[0]) for n in range(2)] == [8, 8]


def test_nobody_is_set_aside_for_an_urgent_job_that_would_still_not_fit() -> None:
    rig = UnifiedRig(cells=64, slots=4)
    rig.add(attempt("same", sequence([1] * 30, max_tokens=8, sampler=says(8)), priority=0))
    rig.add(attempt("slow", sequence([2] * 8, max_tokens=8, sampler=says(8)), priority=9))
    rig.steps(6)
    rig.add(attempt("urgent", sequence([5] * 40, max_tokens=2), priority=0))
    rig.steps(2)

    assert rig.scheduler.counters.set_aside == 0
    rig.run()


def test_jobs_that_want_four_times_the_cells_all_complete() -> None:
    rig = UnifiedRig(cells=64)

    rig.run(
        *(attempt(f"job-{n}", sequence([n + 1] * 9, max_tokens=42, sampler=says(42))) for n in range(6)), within=2000
    )

    assert [len(said.tokens[0]) for said in rig.said.values()] == [42] * 6
    assert {said.end.reason for said in rig.said.values() if said.end} == {"done"}
    assert rig.scheduler.counters.set_aside > 0


def test_one_job_may_have_the_whole_pool() -> None:
    rig = UnifiedRig(cells=64)

    rig.run(attempt("long", sequence([1] * 40, max_tokens=24, sampler=says(24))))

    assert len(rig.said["long"].tokens[0]) == 24


def test_the_oldest_of_the_most_urgent_is_never_set_aside_for_want_of_cells() -> None:
    rig = UnifiedRig(cells=48)
    oldest = attempt("oldest", sequence([1] * 5, max_tokens=30, sampler=says(30)))

    rig.run(oldest, *(attempt(f"job-{n}", sequence([n + 2] * 5, max_tokens=30, sampler=says(30))) for n in range(4)))

    assert oldest.set_aside == 0


def test_a_shared_beginning_takes_its_cells_once() -> None:
    rig = UnifiedRig(cells=64)
    beginning = [7] * 32

    rig.run(*(attempt(f"job-{n}", sequence([*beginning, n], max_tokens=3, sampler=says(3))) for n in range(SLOTS)))

    assert rig.scheduler.counters.read_tokens < 2 * len(beginning)
    assert rig.scheduler.counters.set_aside == 0


def test_kept_prefixes_go_before_anybody_is_set_aside() -> None:
    rig = UnifiedRig(cells=64)
    rig.run(attempt("kept", sequence([3] * 33, max_tokens=1, sampler=says(1))))

    rig.run(attempt("long", sequence([5] * 40, max_tokens=20, sampler=says(20))))

    assert rig.scheduler.counters.set_aside == 0
    assert len(rig.said["long"].tokens[0]) == 20


def test_kept_prefixes_make_way_for_the_cells_of_a_job_that_was_set_aside() -> None:
    rig = UnifiedRig(cells=64, slots=4)
    rig.add(
        attempt("older", sequence([1] * 9, max_tokens=30, sampler=says(30))),
        attempt("younger", sequence([2] * 9, max_tokens=50, sampler=says(50)), priority=9),
    )
    while not rig.scheduler.counters.set_aside:
        rig.step()

    rig.run(attempt("urgent", sequence([3] * 61, max_tokens=2, sampler=says(2)), priority=0))

    assert len(rig.said["younger"].tokens[0]) == 50


def test_small_jobs_pass_a_big_one_that_does_not_fit_but_not_for_ever() -> None:
    rig = UnifiedRig(cells=64, slots=4)
    running = attempt("running", sequence([1] * 20, max_tokens=12, sampler=says(12)))
    rig.add(running)
    rig.steps(8)
    big = attempt("big", sequence([2] * 50, max_tokens=2, sampler=says(2)))
    small = attempt("small", sequence([3] * 3, max_tokens=2, sampler=says(2)))

    rig.add(big, small)
    rig.steps(4)

    assert [rig.said[name].end is None for name in ("small", "big")] == [False, True]
    many = [attempt(f"small-{n}", sequence([3] * 3, max_tokens=2, sampler=says(2))) for n in range(40)]
    rig.run(*many)
    assert rig.said["big"].end is not None
    assert big.sequences[0].passed <= 16


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.integers(0, 30),  # arrives at this step
            st.integers(0, 2),  # which beginning
            st.integers(1, 24),  # how much of it
            st.integers(1, 20),  # most tokens
            st.integers(0, 9),  # priority
            st.integers(1, 2),  # choices
            st.booleans(),  # guided
        ),
        min_size=1,
        max_size=12,
    ),
    cancels=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 11)), max_size=4),
)
def test_the_pool_is_never_overdrawn_and_every_job_says_what_it_says_alone(
    jobs: list[tuple[int, int, int, int, int, int, bool]], cancels: list[tuple[int, int]]
) -> None:
    def make(number: int) -> list[object]:
        _, beginning, length, max_tokens, _, choices, guided = jobs[number]
        return [
            sequence(
                [beginning] * length,
                choice=choice,
                max_tokens=max_tokens,
                sampler=FakeSampler(seed=100 * number + choice),
                negative=[9] * 5 if guided else (),
            )
            for choice in range(choices)
        ]

    alone = UnifiedRig(cells=96)
    for number in range(len(jobs)):
        alone.run(attempt(str(number), *make(number)))  # type: ignore[arg-type]
    rig = UnifiedRig(cells=96)
    cancelled = set()
    for step in range(41):
        rig.add(
            *(
                attempt(str(number), *make(number), priority=job[4])  # type: ignore[arg-type]
                for number, job in enumerate(jobs)
                if job[0] == step
            )
        )
        for at, number in cancels:
            if at == step and str(number) in rig.said:
                rig.end(str(number), "cancelled")
                cancelled.add(str(number))
        if not rig.scheduler.idle:
            rig.step()
    rig.run(within=3000)

    for job_id, said in rig.said.items():
        assert said.end is not None
        if job_id not in cancelled:
            assert (said.texts, said.tokens) == (alone.said[job_id].texts, alone.said[job_id].tokens)
