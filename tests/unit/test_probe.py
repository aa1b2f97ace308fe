"""The probe, on engines whose arithmetic depends on the shape of a call in all the ways that devices have."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from celery_llama_worker.engine.plan import Call, CallResult, CellOperation, Copy, Limits, Load, Plan, Save, Trim
from celery_llama_worker.engine.probe import ProbeReport, probe, row_counts

VOCABULARY, CHUNK = 50, 32


class Row(NamedTuple):
    """What a kernel may go by."""

    #: Rows of the call.
    rows: int
    #: Which of them this one is.
    number: int
    #: Of its piece.
    tokens: int
    #: Cells of the longest sequence in the call.
    longest: int

    @property
    def partial(self) -> bool:
        return 1 < self.tokens < CHUNK


Kernel = Callable[[Row], object]


class ShapedEngine:
    """A cell knows its token and the kernel that computed it, and all of a slot's cells make the logits."""

    def __init__(
        self,
        kernel: Kernel = lambda row: None,
        *,
        slots: int = 20,
        can_trim: bool = True,
        cells: int = 512,
        seconds_per_token: float = 0.0,
        copied: str = "",
        restored: str = "",
    ) -> None:
        """`copied` and `restored` are added to what is copied, and brought back from host memory."""
        self.limits = Limits(slots, cells, max(128, slots), can_trim, spare_slots=int(can_trim))
        self.slots: list[list[object]] = [[] for _ in range(slots + 1)]
        self.longest_call = 0
        self._kernel, self._seconds, self._copied, self._restored = kernel, seconds_per_token, copied, restored
        self._saved: dict[int, list[object]] = {}

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        for operation in plan.operations:
            self._operate(operation)
        for call in plan.calls:
            yield self._compute(call)

    def _operate(self, operation: CellOperation) -> None:
        match operation:
            case Trim(slot, tokens):
                assert self.limits.can_trim or tokens == 0, "such a model's cells are dropped whole"
                del self.slots[slot][tokens:]
            case Copy(source, target, tokens):
                assert self.limits.can_trim
                self.slots[target] = [*self.slots[source][:tokens], *self._copied]
                del self.slots[target][:-tokens]
            case Save(slot, key):
                self._saved[key] = list(self.slots[slot])
            case Load(slot, key, _):
                assert not self.slots[slot]
                self.slots[slot] = [*self._saved.pop(key)]
                self.slots[slot][:1] = (
                    [(self.slots[slot][0], self._restored)] if self._restored else self.slots[slot][:1]
                )

    def _compute(self, call: Call) -> CallResult:
        rows = sum(len(piece.tokens) for piece in call)
        assert rows <= self.limits.batch_tokens
        assert len({len(piece.tokens) for piece in call}) == 1
        self.longest_call = max(self.longest_call, rows)
        longest, index = max(piece.start + len(piece.tokens) for piece in call), 0
        result = CallResult(seconds=rows * self._seconds)
        for piece in call:
            cells = self.slots[piece.slot]
            assert piece.start == len(cells)
            for token in piece.tokens:
                cells.append((token, self._kernel(Row(rows, index, len(piece.tokens), longest))))
                index += 1
            assert len(cells) <= self.limits.cells_per_slot
            if piece.sampler is not None:
                logits = np.full(4, zlib.crc32(repr(cells).encode()), dtype=np.float32)
                result.sampled[piece.slot] = cast(Any, piece.sampler).sample(logits, None)
        return result

    def close(self) -> None: ...

    @property
    def kept(self) -> bool:
        """Whether anything has been left behind."""
        return any(self.slots) or bool(self._saved)


def probed(kernel: Kernel = lambda row: None, **options: Any) -> ProbeReport:
    """What is found on such an engine, which is empty afterwards."""
    engine = ShapedEngine(kernel, **options)
    report = probe(engine, VOCABULARY, CHUNK)
    assert not engine.kept
    return report


@pytest.mark.parametrize("slots", [1, 2, 3, 20, 255])
@pytest.mark.parametrize("can_trim", [True, False])
@pytest.mark.parametrize("cells", [64, 512])
def test_an_engine_that_treats_all_rows_alike_is_reproducible(slots: int, can_trim: bool, cells: int) -> None:
    assert probed(slots=slots, can_trim=can_trim, cells=cells).reproducible


@pytest.mark.parametrize("threshold", range(1, 20))
def test_another_kernel_beyond_any_number_of_rows_is_found_when_decoding(threshold: int) -> None:
    report = probed(lambda row: row.tokens == 1 and row.rows > threshold)

    assert (report.decode, report.prefill) == (False, True)
    assert not report.reproducible


@pytest.mark.parametrize("threshold", range(3, 128))
def test_another_kernel_beyond_any_number_of_rows_is_found_when_reading(threshold: int) -> None:
    assert not probed(lambda row: row.tokens > 1 and row.rows > threshold, slots=4).prefill


@pytest.mark.parametrize(
    "kernel",
    {
        "from 9 rows on": lambda row: row.rows > 8,
        "partial chunks alone": lambda row: row.partial and row.rows > 8,
        "the last row of several": lambda row: row.rows > 1 and row.number == row.rows - 1,
        "the first row of several": lambda row: row.rows > 1 and row.number == 0,
        "the last decode row": lambda row: row.tokens == 1 < row.rows and row.number == row.rows - 1,
        "a full call of rows": lambda row: row.tokens == 1 and row.rows == 20,
        "all but full calls": lambda row: row.tokens == 1 and row.rows in (17, 19),
        "what is left over of 16": lambda row: row.tokens == 1 and row.number >= row.rows - row.rows % 16 > 0,
        "several whole chunks": lambda row: row.tokens == CHUNK and row.rows > CHUNK,
        "a long neighbour": lambda row: row.longest > 256,
    }.items(),
    ids=lambda case: case[0],
)
def test_whatever_changes_a_row_in_company_is_found(kernel: tuple[str, Kernel]) -> None:
    assert not probed(kernel[1]).reproducible


def test_copies_that_are_not_equal_are_found() -> None:
    assert not probed(copied="x").reproducible
    assert not probed(restored="x").reproducible
    assert not probed(restored="x", can_trim=False).reproducible


def test_an_engine_that_says_something_else_each_time_is_found_even_with_one_slot() -> None:
    turn = iter(range(10**9))

    assert not probed(lambda _row: next(turn), slots=1).reproducible


def test_numbers_of_rows_lie_on_both_sides_of_powers_of_two_up_to_all_slots() -> None:
    assert row_counts(20) == [20, 17, 16, 15, 9, 8, 7, 5, 4, 3, 2]
    assert row_counts(2) == [2]
    assert row_counts(1) == [1]


def test_what_there_is_no_time_for_counts_as_different() -> None:
    engine = ShapedEngine(seconds_per_token=0.1)

    report = probe(engine, VOCABULARY, CHUNK, limit_seconds=10.0)

    assert (report.decode, report.prefill, report.complete) == (True, True, False)
    assert not report.reproducible
    assert "for want of time" in report.looked_at
    assert not engine.kept


def test_the_speed_is_known_although_there_is_no_time_at_all() -> None:
    report = probe(ShapedEngine(seconds_per_token=0.5), VOCABULARY, CHUNK, limit_seconds=0.0)

    assert report.speed.seconds_per_token == pytest.approx(0.5)
    assert report.speed.seconds_per_row_call == pytest.approx(0.5 * 20)


def test_no_more_is_read_together_than_a_step_may_take() -> None:
    """And then a step must not read more, since nobody knows whether that would be the same."""
    engine = ShapedEngine(seconds_per_token=0.1)

    report = probe(engine, VOCABULARY, CHUNK, step_seconds=7.0)

    assert report.reproducible
    assert report.step_tokens == engine.longest_call == 2 * CHUNK
    assert probe(ShapedEngine(seconds_per_token=1.0), VOCABULARY, CHUNK, step_seconds=7.0).step_tokens == CHUNK
