"""Who has which slot: shared prefixes, retained prefixes, and decoding slots side by side."""

from __future__ import annotations

import pytest

from celery_llama_worker.engine.plan import CallError, Copy, Limits, Trim
from celery_llama_worker.engine.scheduling.memory import PartitionedMemory
from celery_llama_worker.engine.scheduling.sequence import Attempt, Sequence
from tests.fakes import FakeSampler
from tests.stepping import Rig, attempt, chunks_of, rows_of, sequence

SYSTEM = list(range(100, 112))  # three chunks


def memory(slots: int = 4, *, can_trim: bool = True, share: bool = True) -> PartitionedMemory:
    """Slots of 64 cells, one of them spare, chunks of four."""
    limits = Limits(slots, 64, 64, can_trim, spare_slots=1 if can_trim else 0)
    return PartitionedMemory(limits, chunk_tokens=4, share_prefixes=share)


def assign(memory: PartitionedMemory, prompt: list[int], *, read: bool = True) -> Sequence:
    """A sequence with a slot, whose prompt has been read but for the last token."""
    text = sequence(prompt)
    owner = attempt("job", text)
    memory.assign(owner, text)
    while read and text.remaining > 1:
        memory.computed(owner, text, tuple(text.piece(4).tokens[: text.remaining - 1]))
    return text


def asks(job_id: str, question: int, *, max_tokens: int = 3, priority: int = 5) -> Attempt:
    """A job with the system prompt and a question of its own."""
    prompt = [*SYSTEM, question, question]
    return attempt(
        job_id, sequence(prompt, max_tokens=max_tokens, sampler=FakeSampler(says=[1] * 50)), priority=priority
    )


def copies_of(rig: Rig) -> list[Copy]:
    return [operation for plan in rig.engine.plans for operation in plan.operations if isinstance(operation, Copy)]


def read_by(rig: Rig) -> list[list[int]]:
    """Every chunk of the system prompt that was computed."""
    chunks = [list(piece.tokens) for plan in rig.engine.plans for piece in chunks_of(plan)]
    return [chunk for chunk in chunks if chunk[0] in SYSTEM]


# retained prefixes


def test_a_slot_that_fell_free_keeps_its_cells_for_who_needs_them() -> None:
    cells = memory()
    first = assign(cells, [*SYSTEM, 1])
    slot = first.slot
    assert slot is not None
    cells.release(first)
    cells.take_operations()

    second = assign(cells, [*SYSTEM, 2, 3], read=False)

    assert (second.slot, second.read, second.cached) == (slot, 12, 12)
    assert cells.take_operations() == [Trim(slot, 12)]


def test_empty_slots_are_taken_before_those_that_hold_something() -> None:
    cells = memory(slots=3)
    held = [assign(cells, [n] * 9) for n in range(2)]
    slots = [text.slot for text in held]
    for text in held:
        cells.release(text)

    assert assign(cells, [7] * 9).slot not in slots


def test_the_prefix_whose_slot_fell_free_longest_ago_goes_first() -> None:
    cells = memory(slots=3)
    held = [assign(cells, [n] * 9) for n in range(3)]
    slots = {n: text.slot for n, text in enumerate(held)}
    for n in (1, 2, 0):
        cells.release(held[n])
    assign(cells, [8] * 9)  # takes the spare slot, which is empty

    assert [assign(cells, [n] * 9).slot for n in (6, 7)] == [slots[1], slots[2]]


def test_of_several_slots_with_the_same_prefix_the_one_with_least_beyond_it_is_taken() -> None:
    cells = memory()
    long, short = assign(cells, [*SYSTEM, *[1] * 9]), assign(cells, [*SYSTEM, 2])
    expected = short.slot
    cells.release(short)
    cells.release(long)

    assert assign(cells, [*SYSTEM, 3]).slot == expected


def test_the_last_token_is_always_computed() -> None:
    cells = memory()
    cells.release(assign(cells, [*SYSTEM, 1]))

    again = assign(cells, SYSTEM, read=False)

    assert (again.read, again.remaining) == (8, 4)


def test_a_prefix_goes_when_its_slot_gets_something_else() -> None:
    cells = memory(slots=1)
    cells.release(assign(cells, [*SYSTEM, 1]))
    cells.release(assign(cells, [2] * 9))
    cells.release(assign(cells, [3] * 9))

    assert assign(cells, [*SYSTEM, 1], read=False).read == 0


@pytest.mark.parametrize("options", [{"can_trim": False}, {"share": False}])
def test_nothing_is_kept_where_it_must_not_be(options: dict[str, bool]) -> None:
    cells = memory(**options)
    cells.release(assign(cells, [*SYSTEM, 1]))

    assert assign(cells, [*SYSTEM, 1], read=False).read == 0


def test_lost_cells_are_nobodys() -> None:
    cells = memory()
    running, free = assign(cells, [*SYSTEM, 1]), assign(cells, [*SYSTEM, 2])
    cells.release(free)
    cells.lose_cells()

    assert (running.read, running.cached) == (0, 0)
    assert assign(cells, [*SYSTEM, 3], read=False).read == 0


# shared prefixes


def test_one_reads_a_shared_prefix_and_the_others_wait_and_copy_it_once() -> None:
    rig = Rig()
    rig.run(*(asks(str(n), n) for n in range(4)))

    assert read_by(rig) == [SYSTEM[:4], SYSTEM[4:8], SYSTEM[8:]]
    assert [copy.tokens for copy in copies_of(rig)] == [12, 12, 12]
    assert sorted(said.began[0].cached_tokens for said in rig.said.values()) == [0, 12, 12, 12]


def test_a_follower_that_needs_less_than_its_leader_does_not_wait_for_the_rest() -> None:
    rig = Rig()
    rig.add(asks("leader", 1), attempt("short", sequence([*SYSTEM[:8], 9, 9], max_tokens=3)))
    rig.steps(2)
    assert not rig.said["short"].began

    rig.step()

    assert rig.said["short"].began[0].cached_tokens == 8


def test_who_comes_later_shares_what_a_decoding_sequence_has_read() -> None:
    rig = Rig()
    rig.add(asks("first", 1, max_tokens=20))
    rig.steps(5)
    rig.add(asks("second", 2))
    rig.step()

    assert rig.said["second"].began[0].cached_tokens == 12


def test_who_finds_all_but_the_last_token_decodes_with_the_others() -> None:
    rig = Rig()
    rig.add(asks("first", 1, max_tokens=20))
    rig.steps(5)
    rig.add(attempt("second", sequence([*SYSTEM, 2], max_tokens=20)))

    plan = rig.step()

    assert [len(call) for call in plan.calls] == [2]
    assert len(rows_of(plan)) == 2


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_when_the_leader_is_cancelled_a_follower_goes_on_from_where_it_was(steps: int) -> None:
    rig = Rig(slots=3)
    rig.add(asks("leader", 1), asks("follower", 2), asks("third", 3))
    rig.steps(steps)

    rig.end("leader", "cancelled")
    rig.run()

    assert read_by(rig) == [SYSTEM[:4], SYSTEM[4:8], SYSTEM[8:]]
    assert [rig.said[name].reasons[0] for name in ("follower", "third")] == ["length"] * 2


def test_the_prompt_of_several_choices_is_read_once() -> None:
    rig = Rig()
    rig.run(attempt("n", *(sequence([*SYSTEM, 1, 1], choice=n, sampler=FakeSampler(n)) for n in range(4))))

    assert read_by(rig) == [SYSTEM[:4], SYSTEM[4:8], SYSTEM[8:]]
    assert len({tuple(tokens) for tokens in rig.said["n"].tokens.values()}) == 4


def test_an_urgent_job_does_not_wait_for_a_reader_that_others_keep_from_reading() -> None:
    rig = Rig(slots=4, prefill=4)
    rig.add(asks("slow", 1, priority=9))
    rig.step()
    rig.add(
        *(attempt(str(n), sequence([n] * 40, max_tokens=1), priority=5) for n in range(2)),
        asks("urgent", 2, priority=0),
    )

    rig.steps(4)

    assert rig.said["urgent"].began
    assert not rig.said["slow"].end


def test_sharing_can_be_turned_off() -> None:
    rig = Rig(share=False)
    rig.run(*(asks(str(n), n) for n in range(4)))

    assert len(read_by(rig)) == 12
    assert copies_of(rig) == []


@pytest.mark.parametrize("together", [True, False])
def test_a_text_is_the_same_whether_its_prefix_was_read_or_copied(together: bool) -> None:
    def one(question: int) -> Attempt:
        return attempt(str(question), sequence([*SYSTEM, question, 1], max_tokens=20, sampler=FakeSampler(question)))

    rig = Rig(rounding=True)
    if together:
        rig.run(*map(one, range(8)))
    else:
        for question in range(8):
            rig.run(one(question))

    for question in range(8):
        alone = Rig(rounding=True)
        alone.run(one(question))
        assert rig.said[str(question)].tokens == alone.said[str(question)].tokens
    assert rig.scheduler.counters.copied_tokens > 0 or not together


# slots side by side


def test_decoding_sequences_are_moved_together_when_one_between_them_leaves() -> None:
    rig = Rig(slots=3)
    lengths = {"a": 20, "b": 3, "c": 20}
    rig.run(
        *(
            attempt(name, sequence([n] * 3, max_tokens=length, sampler=FakeSampler(n)))
            for n, (name, length) in enumerate(lengths.items())
        )
    )

    assert len(copies_of(rig)) == 1


def test_a_reader_between_two_that_decode_makes_way() -> None:
    rig = Rig(slots=3)
    rig.add(
        attempt("a", sequence([1] * 3, max_tokens=20)),
        attempt("reader", sequence([2] * 40, max_tokens=1)),
        attempt("b", sequence([3] * 3, max_tokens=20)),
    )
    plans = [rig.step() for _ in range(4)]

    assert any(len(rows_of(plan)) == 2 and chunks_of(plan) for plan in plans)
    rig.run()


def test_nothing_is_moved_while_all_slots_decode() -> None:
    rig = Rig()
    rig.run(*(attempt(str(n), sequence([n] * 3, max_tokens=20, sampler=FakeSampler(says=[1] * 20))) for n in range(4)))

    assert copies_of(rig) == []


def test_a_moved_sequence_leaves_its_prefix_behind() -> None:
    rig = Rig(slots=3)
    rig.add(
        attempt("a", sequence([1] * 3, max_tokens=30, sampler=FakeSampler(says=[1] * 30))),
        attempt("b", sequence([2] * 3, max_tokens=4, sampler=FakeSampler(says=[1] * 30))),
        asks("c", 3, max_tokens=30),
    )
    rig.steps(8)
    assert copies_of(rig)
    rig.add(asks("d", 4))
    rig.step()

    assert rig.said["d"].began[0].cached_tokens == 12


def test_a_prefix_that_lost_its_slot_is_brought_back_from_host_memory() -> None:
    rig = Rig(slots=1, cells=64, store_bytes=40)
    first, other = [1] * 17, [2] * 17
    rig.run(attempt("first", sequence(first, max_tokens=2)))
    rig.run(attempt("other", sequence(other, max_tokens=2)), attempt("third", sequence([3] * 9, max_tokens=2)))
    read = rig.scheduler.counters.read_tokens

    rig.run(attempt("again", sequence(first, max_tokens=2)))

    assert rig.said["again"].tokens == rig.said["first"].tokens
    assert rig.said["again"].began[0].cached_tokens == 16
    assert rig.scheduler.counters.read_tokens == read


def test_the_prefix_used_longest_ago_leaves_host_memory_first() -> None:
    rig = Rig(slots=1, cells=64, store_bytes=32)
    for number in range(6):
        rig.run(attempt(f"job-{number}", sequence([number] * 17, max_tokens=2)))

    assert len(rig.engine.saved) == 2
    rig.run(attempt("oldest", sequence([0] * 17, max_tokens=2)))
    assert rig.said["oldest"].began[0].cached_tokens == 0


def test_nothing_is_left_in_host_memory_when_the_cells_are_lost() -> None:
    rig = Rig(slots=1, cells=64, store_bytes=64)
    for number in range(3):
        rig.run(attempt(f"job-{number}", sequence([number] * 17, max_tokens=2)))
    rig.engine.failures.append(CallError("lost", cells_lost=True))

    rig.run(attempt("unlucky", sequence([9] * 5, max_tokens=2)))
    rig.run(attempt("next", sequence([8] * 5, max_tokens=2)))

    assert not rig.engine.saved
