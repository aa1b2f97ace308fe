"""When an engine counts as wedged."""

from __future__ import annotations

from typing import Any, cast

from celery_llama_worker.bookkeeping.keeper import _Silence


class Runner:
    """An engine thread's last sign of life."""

    progress_at = 0.0
    longest_call_seconds = 0.0


def test_an_engine_that_answers_is_never_silent() -> None:
    runner = Runner()
    silence = _Silence(cast(Any, runner), 5.0)
    start = silence._looked

    for number in range(1, 5):
        runner.progress_at = number
        assert silence.look(start + 5.0 * number) == 0.0


def test_silence_adds_up_and_ends_with_the_first_step() -> None:
    runner = Runner()
    silence = _Silence(cast(Any, runner), 5.0)
    start = silence._looked

    assert [silence.look(start + 5.0 * number) for number in (1, 2, 3)] == [5.0, 10.0, 15.0]
    runner.progress_at = 1.0
    assert silence.look(start + 20.0) == 0.0


def test_time_in_which_nobody_looked_is_not_the_engines() -> None:
    """The whole process was stopped, or the keeper waited for Redis, and nobody asked an idle engine for a sign."""
    silence = _Silence(cast(Any, Runner()), 5.0)

    assert silence.look(silence._looked + 1_000.0) == 10.0


def test_an_engine_whose_calls_take_longer_than_a_lease_is_given_the_time_that_they_need() -> None:
    """A chunk of 64 tokens at 0.9 tokens/s, on a small machine with a large model."""
    runner = Runner()
    silence = _Silence(cast(Any, runner), 5.0)
    start = silence._looked
    runner.longest_call_seconds = 70.0

    for number in range(1, 43):
        silence.look(start + 5.0 * number)
        assert not silence.outlasts(25.0)
    silence.look(start + 215.0)
    assert silence.outlasts(25.0)


def test_elsewhere_a_lease_is_long_enough() -> None:
    runner = Runner()
    silence = _Silence(cast(Any, runner), 5.0)
    runner.longest_call_seconds = 0.5

    for number in range(1, 7):
        silence.look(silence._looked + 5.0)
        assert silence.outlasts(25.0) == (number > 5)
