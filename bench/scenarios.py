"""What queues are for: a shared beginning, mixed lengths, ten thousand jobs."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench import peers, queue, work
from bench.race import Side, race, rates, standing_still
from bench.setting import Setting
from bench.stage import Worker, server, worker
from celery_llama import JobHandle


def shared_prefix(setting: Setting) -> dict[str, Any]:
    """Seconds for 32 jobs of 32 tokens over one prefix of 460 that no cache knows, all at once."""
    slots, prefix, tokens = setting.size(32, 4), setting.size(460, 140), setting.size(32, 4)
    works = (work.shared_prefix(setting.model, slots, prefix, tokens, seed) for seed in itertools.count())
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                worker(
                    stack.enter_context(server()),
                    setting.path,
                    slots,
                    threads=setting.threads,
                    share_prefixes=name == "sharing",
                )
            )
            for name in ("sharing", "not sharing")
        }
        rival = stack.enter_context(peers.rival(setting, slots, in_flight=slots))

        def measure() -> dict[str, float]:
            jobs = next(works)
            handles: dict[str, list[JobHandle]] = {}

            def run(name: str) -> float:
                handles[name] = queue.submit(workers[name], jobs)
                return queue.generated(queue.results(handles[name]))

            sides = {name: Side(partial(run, name), ours.child) for name, ours in workers.items()}
            sides |= rival(jobs)
            with standing_still(side.process for side in sides.values()):
                laps = race(sides)
            return {name: lap.seconds for name, lap in laps.items()} | {
                f"last first token, {name}": laps[name].seconds_until(max(map(_first_token_at, ours)))
                for name, ours in handles.items()
            }

        print(f"\nshared prefix: {(first := next(works))}")
        rounds = setting.referee.play(measure)
    ratios = ("not sharing/sharing", "llama-server/sharing", "last first token, not sharing/last first token, sharing")
    return rounds.figures(*ratios, work=str(first), unit="s")


def _first_token_at(job: JobHandle) -> float:
    """When the job had its first token (Unix seconds)."""
    created, timings = job.status().created_unix_seconds, job.result().timings
    assert created is not None
    assert timings.queued_s is not None
    assert timings.first_token_s is not None
    return created + timings.queued_s + timings.first_token_s


def mixed_lengths(setting: Setting) -> dict[str, Any]:
    """Tokens per second of chats of different lengths that end by themselves, far below their `max_tokens`."""
    slots = setting.size(32, 4)
    works = (work.mixed(setting.model, slots, setting.size(256, 16), seed) for seed in itertools.count())
    with (
        server() as url,
        worker(url, setting.path, slots, threads=setting.threads) as ours,
        peers.rival(setting, slots) as rival,
    ):

        def measure() -> dict[str, float]:
            jobs = next(works)
            return rates({"queue": Side(lambda: queue.run(ours, jobs), ours.child)} | rival(jobs))

        print(f"\nmixed lengths: {(first := next(works))}")
        rounds = setting.referee.play(measure)
    return rounds.figures("queue/llama-server", work=str(first), unit="tokens/s")


def backlog(setting: Setting) -> dict[str, Any]:
    """What 10,000 waiting jobs cost: to submit them, to keep them, and while others are decoded.

    Two servers and workers, one with the jobs, one with just enough to be busy all the time.
    """
    counts, slots = {"many": setting.size(10_000, 200), "few": setting.size(1_000, 100)}, setting.size(32, 4)
    print(f"\nbacklog: {counts['many']} queued jobs, or {counts['few']}")
    # A worker that stands still while others submit is not to be taken for dead.
    options: dict[str, Any] = {"lease_seconds": 100_000, "stall_seconds": 100_000, "drain_seconds": 0}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                worker(stack.enter_context(server()), setting.path, slots, threads=setting.threads, **options)
            )
            for name in counts
        }
        ours = workers["many"]
        queue.run(ours, work.distinct(setting.model, slots, 64, 16, seed=1))
        before, resident = _redis_bytes(ours), ours.resident_bytes()
        with standing_still([one.child for one in workers.values()]):
            begun = time.perf_counter()
            queued = {"many": _submit(setting, ours, counts["many"])}
            seconds = time.perf_counter() - begun
            kept = (_redis_bytes(ours) - before) / counts["many"]
            queued["few"] = _submit(setting, workers["few"], counts["few"])

            def finish_next(name: str) -> float:
                return queue.generated(queue.results([queued[name].pop(0) for _ in range(2 * slots)]))

            sides = {name: Side(partial(finish_next, name), one.child) for name, one in workers.items()}

            def measure() -> dict[str, float]:
                return {name: 1000 * lap.seconds / lap.work for name, lap in race(sides).items()}

            measure()  # until all slots are busy
            rounds = setting.referee.play(measure)
            grown = ours.resident_bytes() - resident
    return rounds.figures(
        "many/few",
        unit="ms a token",
        jobs=counts["many"],
        submitted_per_s=round(counts["many"] / seconds, 1),
        redis_bytes_per_job=round(kept),
        worker_grew_mb=round(grown / 2**20, 1),
    )


def _submit(setting: Setting, ours: Worker, count: int) -> list[JobHandle]:
    """So many jobs, one after another."""
    jobs = work.distinct(setting.model, 200, 64, setting.size(64, 32), seed=9)
    return [
        ours.client.submit(prompt=jobs.prompts[number % 200], max_tokens=jobs.max_tokens, temperature=0.0)
        for number in range(count)
    ]


def _redis_bytes(ours: Worker) -> int:
    return int(ours.connection.info("memory")["used_memory"])
