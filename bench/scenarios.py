"""What queues are for: a shared beginning, mixed lengths, a burst while a long prompt is read, ten thousand jobs.

Distinct prompts are in `throughput.py`.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from typing import Any

from bench import peers, queue
from bench.latency import subscriber
from bench.limit import BareLoop
from bench.quiet import in_turn
from bench.race import Side, race, rates, standing_still
from bench.setting import Setting
from bench.stage import Worker, server, worker
from bench.work import Work, distinct, mixed, shared_prefix, text_tokens
from celery_llama import JobHandle


def measure(setting: Setting) -> dict[str, Any]:
    """All scenarios."""
    return {
        "shared_prefix": shared(setting),
        "mixed_lengths": lengths(setting),
        "burst": burst(setting),
        "backlog": backlog(setting),
    }


def shared(setting: Setting) -> dict[str, Any]:
    """Seconds for 32 jobs of 32 tokens over one prefix of 460 that no cache knows, all at once."""
    slots, prefix, tokens = setting.size(32, 4), setting.size(460, 140), setting.size(32, 4)
    works = (shared_prefix(setting.model, slots, prefix, tokens, seed) for seed in itertools.count())
    with ExitStack() as stack:
        ours, alone = (
            stack.enter_context(
                worker(
                    stack.enter_context(server()),
                    setting.path,
                    slots,
                    threads=setting.threads,
                    share_prefixes=share_prefixes,
                )
            )
            for share_prefixes in (True, False)
        )
        rival = None
        if setting.llama_server:
            rival = stack.enter_context(
                peers.llama_server(setting.llama_server, setting.path, slots, 1024, setting.threads)
            )

        def measure() -> dict[str, float]:
            work = next(works)
            handles: dict[str, list[JobHandle]] = {}

            def run(name: str, worker: Worker) -> float:
                handles[name] = queue.submit(worker, work)
                return queue.generated(queue.results(handles[name]))

            sides = {
                "sharing": Side(lambda: run("sharing", ours), ours.child),
                "not sharing": Side(lambda: run("not sharing", alone), alone.child),
            }
            if rival:
                sides["llama-server"] = Side(lambda: rival.run(work, in_flight=slots), rival.child)
            with standing_still(side.process for side in sides.values()):
                laps = race(sides)
            return {name: lap.seconds for name, lap in laps.items()} | {
                f"last first token, {name}": laps[name].seconds_until(max(map(_first_token_at, jobs)))
                for name, jobs in handles.items()
            }

        print(f"\nshared prefix: {(first := next(works))}")
        rounds = setting.referee.play(measure)
    figures = rounds.figures(work=str(first), unit="s")
    for side in ("not sharing", "llama-server") if rival else ("not sharing",):
        figures[f"{side}/sharing"] = round(rounds.ratio(side, "sharing"), 2)
    figures["last first token, not sharing/sharing"] = round(
        rounds.ratio("last first token, not sharing", "last first token, sharing"), 2
    )
    return figures


def _first_token_at(job: JobHandle) -> float:
    """When the job had its first token (Unix seconds)."""
    created, timings = job.status().created_unix_seconds, job.result().timings
    assert created is not None
    assert timings.queued_s is not None
    assert timings.first_token_s is not None
    return created + timings.queued_s + timings.first_token_s


def lengths(setting: Setting) -> dict[str, Any]:
    """Tokens per second of chats of different lengths that end by themselves, far below their `max_tokens`."""
    slots = setting.size(32, 4)
    works = (mixed(setting.model, slots, setting.size(256, 16), seed) for seed in itertools.count())
    with ExitStack() as stack:
        ours = stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, threads=setting.threads))
        rival = None
        if setting.llama_server:
            rival = stack.enter_context(
                peers.llama_server(setting.llama_server, setting.path, slots, 1024, setting.threads)
            )

        def measure() -> dict[str, float]:
            work = next(works)
            sides = {"queue": Side(lambda: queue.run(ours, work), ours.child)}
            if rival:
                sides["llama-server"] = Side(lambda: rival.run(work), rival.child)
            return rates(sides)

        print(f"\nmixed lengths: {(first := next(works))}")
        rounds = setting.referee.play(measure)
    figures = rounds.figures(work=str(first), unit="tokens/s")
    if rival:
        figures["queue/llama-server"] = round(rounds.ratio("queue", "llama-server"), 3)
    return figures


def burst(setting: Setting) -> dict[str, Any]:
    """Milliseconds: the longest gap between two tokens of 8 decoding jobs while a prompt of 1,500 tokens is read.

    It is compared with what a step must take then: a bare decode of 8 rows, and a bare read of one chunk.
    """
    jobs, long_tokens = 8, setting.size(1500, 300)
    print(f"\nburst: {jobs} jobs decode while a prompt of {long_tokens} tokens is read")
    seeds = itertools.count(1)
    with ExitStack() as stack:
        url = stack.enter_context(server())
        ours = stack.enter_context(worker(url, setting.path, jobs + 1, threads=setting.threads, ctx_per_slot=2048))
        loop = stack.enter_context(BareLoop(setting.model, jobs, ctx_per_slot=2048, threads=setting.threads))

        def gap() -> float:
            return _longest_gap(setting, ours, jobs, long_tokens, next(seeds))

        def step() -> float:
            run = loop.run(distinct(setting.model, jobs, 64, 32, next(seeds)))
            chunk = loop.run(Work([text_tokens(setting.model, 64, next(seeds))], 1))
            return (run.decode_seconds / 31 + chunk.seconds) * 1000

        rounds = setting.referee.play(in_turn({"longest gap": gap, "decode and one chunk": step}))
    return rounds.figures(unit="ms", **{"gap/step": round(rounds.ratio("longest gap", "decode and one chunk"), 2)})


def _longest_gap(setting: Setting, ours: Worker, jobs: int, long_tokens: int, seed: int) -> float:
    decoding = distinct(setting.model, jobs, 64, setting.size(200, 60), seed)
    with subscriber(ours) as arrivals:
        handles = queue.submit(ours, decoding)
        for handle in handles:
            next(event for event in handle.stream() if event.type == "token")
        begun = time.monotonic_ns()
        late = ours.client.submit(prompt=text_tokens(setting.model, long_tokens, seed), max_tokens=1, temperature=0.0)
        next(event for event in late.stream() if event.type == "token")
        ended = time.monotonic_ns()
        ours.wait_until_open(0)
    gaps = [
        after - before
        for handle in handles
        for (_, before), (_, after) in itertools.pairwise(arrivals[handle.id])
        if begun < before < ended  # the jobs' own prompts have been read before
    ]
    return float(max(gaps, default=0) / 1e6)


def backlog(setting: Setting) -> dict[str, Any]:
    """What 10,000 waiting jobs cost: to submit them, to keep them, and while others are decoded.

    Two servers and workers, one with the jobs, one with just enough to be busy all the time.
    """
    count, few, slots = setting.size(10_000, 200), setting.size(1_000, 100), setting.size(32, 4)
    print(f"\nbacklog: {count} queued jobs, or {few}")
    options: dict[str, Any] = {
        "threads": setting.threads,
        "lease_seconds": 100_000,
        "stall_seconds": 100_000,
        "drain_seconds": 0,
    }
    with ExitStack() as stack:
        ours, busy = (
            stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, **options)) for _ in range(2)
        )
        queue.run(ours, distinct(setting.model, slots, 64, 16, seed=1))
        before, resident = _redis_bytes(ours), ours.resident_bytes()
        with standing_still([ours.child, busy.child]):
            begun = time.perf_counter()
            queued = {"many": _submit(setting, ours, count)}
            seconds = time.perf_counter() - begun
            kept = (_redis_bytes(ours) - before) / count
            queued["few"] = _submit(setting, busy, few)

            def finish_next(jobs: list[JobHandle]) -> float:
                following = [jobs.pop(0) for _ in range(2 * slots)]
                return queue.generated(queue.results(following))

            sides = {
                "many": Side(lambda: finish_next(queued["many"]), ours.child),
                "few": Side(lambda: finish_next(queued["few"]), busy.child),
            }

            def measure() -> dict[str, float]:
                return {name: 1000 * lap.seconds / lap.work for name, lap in race(sides).items()}

            measure()  # until all slots are busy
            rounds = setting.referee.play(measure)
            grown = ours.resident_bytes() - resident
    return rounds.figures(
        unit="ms a token",
        jobs=count,
        submitted_per_s=round(count / seconds, 1),
        redis_bytes_per_job=round(kept),
        worker_grew_mb=round(grown / 2**20, 1),
        **{"many/few": round(rounds.ratio("many", "few"), 4)},
    )


def _submit(setting: Setting, ours: Worker, count: int) -> list[JobHandle]:
    """So many jobs, one after another."""
    work = distinct(setting.model, 200, 64, setting.size(64, 32), seed=9)
    return [
        ours.client.submit(prompt=work.prompts[number % 200], max_tokens=work.max_tokens, temperature=0.0)
        for number in range(count)
    ]


def _redis_bytes(ours: Worker) -> int:
    return int(ours.connection.info("memory")["used_memory"])
