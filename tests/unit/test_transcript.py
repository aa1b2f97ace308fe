"""What a transcript reckons: how fast tokens came."""

from __future__ import annotations

import pytest

from worker.engine.outputs import Ended, Text
from worker.engine.plan import Sampled
from worker.transcript import Transcript


def test_the_rate_counts_the_tokens_and_the_time_after_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("worker.transcript.time.monotonic", lambda: now[0])
    transcript = Transcript("job", 1, attempts=1, worker="w", model="m", piece=lambda _: b"x")

    rates = []
    for count in (2, 3, 5):
        transcript.write([Text("job", 1, 0, "x" * count, [Sampled(7)] * count, None)])
        rates.append(transcript.end(Ended("job", 1, "done"))[2].timings.tokens_per_s)
        now[0] += 0.5

    assert rates == [None, 6.0, 8.0]
