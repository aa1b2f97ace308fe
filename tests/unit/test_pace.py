"""How many prompt tokens a step may read, by what calls take."""

from __future__ import annotations

import pytest

from celery_llama_worker.engine.pace import UNKNOWN, Pace, Speed


def pace(speed: Speed = UNKNOWN, step_seconds: float = 5.0) -> Pace:
    """A step of 512 tokens at most, in chunks of 64."""
    return Pace(512, 64, step_seconds, speed)


def test_a_fast_machine_reads_all_that_is_allowed() -> None:
    assert pace(Speed(0.001, 0.1)).budget_tokens == 512


def test_a_slow_machine_reads_what_fits_the_time() -> None:
    assert pace(Speed(1 / 40, 0.1)).budget_tokens == 200


def test_a_chunk_is_read_however_long_it_takes() -> None:
    assert pace(Speed(10.0, 0.1)).budget_tokens == 64


def test_a_machine_of_which_nothing_is_known_reads_all_that_is_allowed() -> None:
    assert pace().budget_tokens == 512
    assert pace().longest_call_seconds == 0.0


def test_the_longest_call_is_a_chunk_or_a_row_for_everybody() -> None:
    assert pace(Speed(0.1, 1.0)).longest_call_seconds == pytest.approx(6.4)
    assert pace(Speed(0.1, 9.0)).longest_call_seconds == 9.0


def test_a_machine_that_becomes_slow_is_noticed_within_a_few_calls_and_forgotten_when_it_is_over() -> None:
    learning = pace(Speed(0.001, 0.1))

    for _ in range(12):
        learning.note_chunks(64, 6.4)
    assert learning.budget_tokens < 64 + 20
    for _ in range(24):
        learning.note_chunks(64, 0.064)

    assert learning.budget_tokens == 512


def test_what_a_machine_does_is_learned_although_nothing_was_measured() -> None:
    learning = pace()

    learning.note_chunks(64, 64.0)

    assert learning.budget_tokens < 512


def test_a_call_during_which_the_process_was_stopped_says_little() -> None:
    learning = pace(Speed(0.001, 0.1))

    learning.note_chunks(64, 3600.0)
    learning.note_rows(3600.0)

    assert learning.budget_tokens == 512
    assert learning.longest_call_seconds < 1.0


def test_a_few_rows_say_nothing_of_a_full_call() -> None:
    learning = pace(Speed(0.001, 8.0))

    for _ in range(100):
        learning.note_rows(0.5)

    assert learning.longest_call_seconds == 8.0


def test_a_short_piece_counts_little() -> None:
    """Two tokens take nearly as long as twenty where a device has to be woken up for them."""
    learning = pace(Speed(0.01, 0.1))

    learning.note_chunks(2, 0.2)

    assert learning.budget_tokens > 400
