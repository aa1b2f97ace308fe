"""The sampling crew: who samples where, and that nobody's trouble is another's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from celery_llama_worker.engine.llama.candidates import Candidates, Logits
from celery_llama_worker.engine.llama.sampling_crew import Row, SamplingCrew
from celery_llama_worker.engine.plan import Sampled

N_VOCAB = 8
LOGITS = np.zeros(N_VOCAB, dtype=np.float32)


class Sampler:
    """Notes who asks it and what it is given to work in."""

    def __init__(self, token: int = 0, *, quick: bool = False, meets: Callable[[], object] = lambda: None) -> None:
        self.quick = quick
        self.thread, self.candidates = "", None
        self._token, self._meets = token, meets

    def sample(self, row: Logits, candidates: Candidates) -> Sampled:
        self.thread, self.candidates = threading.current_thread().name, candidates  # type: ignore[assignment]
        self._meets()
        return Sampled(self._token, logprob=float(row[self._token]))


@pytest.fixture
def crew() -> Iterator[SamplingCrew]:
    crew = SamplingCrew(N_VOCAB, cores=2)
    yield crew
    crew.close()


def rows(samplers: list[Sampler]) -> list[Row]:
    return [Row(slot, sampler, LOGITS) for slot, sampler in enumerate(samplers)]


def test_many_rows_are_sampled_on_several_threads_at_the_same_time(crew: SamplingCrew) -> None:
    meeting = threading.Barrier(2, timeout=30)  # nobody gets past it alone
    samplers = [Sampler(token % N_VOCAB, meets=meeting.wait) for token in range(8)]

    result = crew.sample(rows(samplers))

    assert {slot: sampled.token for slot, sampled in result.sampled.items()} == {slot: slot for slot in range(8)}
    assert len({sampler.thread for sampler in samplers}) == 2
    assert len({id(sampler.candidates) for sampler in samplers}) == 2


def test_few_rows_and_quick_ones_stay_on_the_engine_thread(crew: SamplingCrew) -> None:
    samplers = [Sampler() for _ in range(7)] + [Sampler(quick=True) for _ in range(20)]

    result = crew.sample(rows(samplers))

    assert len(result.sampled) == 27
    assert {sampler.thread for sampler in samplers} == {threading.current_thread().name}


def test_a_sampler_that_fails_on_another_thread_fails_alone(crew: SamplingCrew) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    samplers = [Sampler(meets=fail if slot in (2, 5) else lambda: None) for slot in range(8)]

    result = crew.sample(rows(samplers))

    assert result.faults == {2: "broken", 5: "broken"}
    assert sorted(result.sampled) == [0, 1, 3, 4, 6, 7]


def test_a_guided_row_is_led_away_from_the_negative_prompts(crew: SamplingCrew) -> None:
    positive, negative = np.log(np.array([[0.5, 0.5], [0.8, 0.2]], dtype=np.float32))

    result = crew.sample([Row(0, Sampler(1), positive, (negative, 1.0)), Row(1, Sampler(1), positive, (negative, 2.0))])

    assert result.sampled[0].logprob == pytest.approx(np.log(0.5))
    assert result.sampled[1].logprob == pytest.approx(2 * np.log(0.5) - np.log(0.2))


def test_one_core_means_one_thread() -> None:
    crew = SamplingCrew(N_VOCAB, cores=1)
    samplers = [Sampler() for _ in range(16)]

    crew.sample(rows(samplers))
    crew.close()
    crew.close()

    assert {sampler.thread for sampler in samplers} == {threading.current_thread().name}
