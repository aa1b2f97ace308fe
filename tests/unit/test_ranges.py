"""Numbers between bounds as regular expressions: every number within is matched, none outside."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_llama_worker.engine.constraint.patterns import compile_pattern
from celery_llama_worker.engine.constraint.ranges import FORMATS, bound_of, decimals, integers
from celery_llama_worker.errors import BadGrammar

bounds = st.none() | st.integers(-2_000, 2_000) | st.integers(-(10**17), 10**17)
numbers = st.integers(-2_100, 2_100) | st.integers(-(10**17), 10**17)
fractions = st.decimals(-1_000, 1_000, places=3) | st.decimals(-3, 3, places=6) | st.integers(-5, 5).map(Decimal)


@given(bounds, bounds, st.lists(numbers, min_size=1, max_size=20))
def test_an_integer_is_matched_if_and_only_if_it_is_within_the_bounds(
    low: int | None, high: int | None, values: list[int]
) -> None:
    if low is not None and high is not None and low > high:
        low, high = high, low
    pattern = re.compile(integers(low, high))

    for value in [*values, *(bound for bound in (low, high) if bound is not None)]:
        within = (low is None or value >= low) and (high is None or value <= high)
        if len(str(abs(value))) <= 16 or not within:
            assert bool(pattern.fullmatch(str(value))) == within


@example(low=None, high=Decimal("0.000"), low_open=False, high_open=True, values=[Decimal("-0.001")])
@example(low=Decimal(1), high=None, low_open=True, high_open=False, values=[Decimal("1.0001"), Decimal("1.000")])
@given(st.none() | fractions, st.none() | fractions, st.booleans(), st.booleans(), st.lists(fractions, max_size=20))
def test_a_decimal_is_matched_only_within_the_bounds_and_with_enough_places_always(
    low: Decimal | None, high: Decimal | None, low_open: bool, high_open: bool, values: list[Decimal]
) -> None:
    try:
        pattern = re.compile(decimals(low, high, low_open=low_open, high_open=high_open))
    except BadGrammar:
        assert low is not None
        assert high is not None
        assert low >= high
        return
    for value in [*values, *(bound for bound in (low, high) if bound is not None)]:
        above = low is None or (value > low if low_open else value >= low)
        below = high is None or (value < high if high_open else value <= high)
        assert bool(pattern.fullmatch(f"{value:.6f}")) == (above and below)
        if value == int(value):
            assert bool(pattern.fullmatch(str(int(value)))) == (above and below)


def test_bounds_that_no_number_meets_are_refused() -> None:
    with pytest.raises(BadGrammar, match="no number meets"):
        integers(3, 2)
    with pytest.raises(BadGrammar, match="no number meets"):
        decimals(Decimal(1), Decimal(1), low_open=True, high_open=False)


def test_bounds_that_a_double_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(BadGrammar, match="decimal places"):
        decimals(Decimal("0.000000000000001"), None, low_open=True, high_open=False)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, (None, False)),
        ({"minimum": 3}, (Decimal(3), False)),
        ({"exclusiveMinimum": 0.5}, (Decimal("0.5"), True)),
        ({"minimum": 3, "exclusiveMinimum": 3}, (Decimal(3), True)),
        ({"minimum": 4, "exclusiveMinimum": 3}, (Decimal(4), False)),
        ({"minimum": 3, "exclusiveMinimum": True}, (Decimal(3), True)),
        ({"minimum": 3, "exclusiveMinimum": False}, (Decimal(3), False)),
    ],
)
def test_a_bound_may_be_excluded_in_the_words_of_any_draft(
    schema: dict[str, object], expected: tuple[Decimal | None, bool]
) -> None:
    assert bound_of(schema, "minimum", "exclusiveMinimum", max) == expected


@given(st.dates(datetime.date(1000, 1, 1)) | st.dates(datetime.date(2019, 2, 27), datetime.date(2021, 3, 2)))
def test_every_day_there_is_can_be_written(day: datetime.date) -> None:
    assert re.fullmatch(FORMATS["date"], day.isoformat())


@given(st.from_regex(re.compile(FORMATS["date"]), fullmatch=True))
def test_no_other_day_can(text: str) -> None:
    datetime.date.fromisoformat(text)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_a_pattern_that_can_be_used(name: str) -> None:
    assert compile_pattern(f"^{FORMATS[name]}$").least > 0
