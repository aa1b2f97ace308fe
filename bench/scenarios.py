"""What queues are for: a shared beginning, mixed lengths, a burst while a long prompt is read, ten thousand jobs.

Distinct prompts are in `throughput.py`.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench import peers, queue
from bench.latency import subscriber
from bench.limit import BareLoop
from bench.setting import Setting
from bench.stage import Worker, server, worker
from bench.work import Work, distinct, in_turn, mixed, shared_prefix, text_tokens


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
    seeds = itertools.count()
    #: For each of our sides, by the seconds that a round took: until the last job had its first token.
    firsts: dict[str, dict[float, float]] = {"sharing": {}, "not sharing": {}}

    def fresh() -> Work:
        return shared_prefix(setting.model, slots, prefix, tokens, next(seeds))

    def run(side: str, worker: Worker) -> float:
        begun = time.perf_counter()
        timings = [result.timings for result in queue.results(queue.submit(worker, fresh()))]
        seconds = time.perf_counter() - begun
        firsts[side][seconds] = max((each.queued_s or 0.0) + (each.first_token_s or 0.0) for each in timings)
        return seconds

    print(f"\nshared prefix: {fresh()}")
    with ExitStack() as stack:
        ours = stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, threads=setting.threads))
        alone = stack.enter_context(
            worker(stack.enter_context(server()), setting.path, slots, threads=setting.threads, share_prefixes=False)
        )
        sides: dict[str, Callable[[], float]] = {
            "sharing": lambda: run("sharing", ours),
            "not sharing": lambda: run("not sharing", alone),
        }
        if setting.llama_server:
            rival = stack.enter_context(
                peers.llama_server(setting.llama_server, setting.path, slots, 1024, setting.threads)
            )
            sides["llama-server"] = lambda: rival.run(fresh(), in_flight=slots).seconds
        rounds = setting.referee.play(sides)
    figures = rounds.figures(work=str(fresh()), unit="s")
    for side in rounds.values.keys() - {"sharing"}:
        figures[f"{side}/sharing"] = round(rounds.ratio(side, "sharing"), 2)
    kept = {side: [firsts[side][seconds] for seconds in rounds.values[side]] for side in firsts}
    figures["seconds to the last first token"] = {side: round(statistics.median(kept[side]), 2) for side in kept}
    gains = [alone / shared for alone, shared in zip(kept["not sharing"], kept["sharing"], strict=True)]
    figures["last first token, not sharing/sharing"] = round(statistics.median(gains), 2)
    return figures


def lengths(setting: Setting) -> dict[str, Any]:
    """Tokens per second of chats of different lengths that end by themselves, far below their `max_tokens`."""
    slots = setting.size(32, 4)

    def make(seed: int) -> Work:
        return mixed(setting.model, 2 * slots, setting.size(512, 16), seed)

    print(f"\nmixed lengths: {make(0)}")
    with ExitStack() as stack:
        ours = stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, threads=setting.threads))
        sides = {"queue": in_turn(make, lambda work: queue.run(ours, work).tokens_per_second)}
        if setting.llama_server:
            rival = stack.enter_context(
                peers.llama_server(setting.llama_server, setting.path, slots, 1024, setting.threads)
            )
            sides["llama-server"] = in_turn(make, lambda work: rival.run(work).tokens_per_second)
        rounds = setting.referee.play(sides)
    figures = rounds.figures(work=str(make(0)), unit="tokens/s")
    if setting.llama_server:
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

        rounds = setting.referee.play({"longest gap": gap, "decode and one chunk": step})
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

    Two servers and workers, one with the jobs, one with just enough to be busy all the time; whichever is not measured
    stands still.
    """
    count, few, slots = setting.size(10_000, 200), setting.size(800, 100), setting.size(32, 4)
    print(f"\nbacklog: {count} queued jobs, or {few}")
    options = {"threads": setting.threads, "lease_seconds": 100_000, "stall_seconds": 100_000, "drain_seconds": 0}
    with ExitStack() as stack:
        busy, ours = (
            stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, observed=True, **options))
            for _ in range(2)
        )
        queue.run(ours, distinct(setting.model, slots, 64, 16, seed=1))
        before, resident = _redis_bytes(ours), ours.resident_bytes()
        for each in (ours, busy):
            stack.enter_context(_standing_still(each))
        seconds = _submit(setting, ours, count)
        kept = (_redis_bytes(ours) - before) / count
        _submit(setting, busy, few)
        rounds = setting.referee.play(
            {"many": lambda: _token_ms(setting, ours), "few": lambda: _token_ms(setting, busy)}
        )
        grown = ours.resident_bytes() - resident
    return rounds.figures(
        unit="ms a token",
        jobs=count,
        submitted_per_s=round(count / seconds, 1),
        redis_bytes_per_job=round(kept),
        worker_grew_mb=round(grown / 2**20, 1),
        **{"many/few": round(rounds.ratio("many", "few"), 4)},
    )


@contextmanager
def _standing_still(ours: Worker) -> Iterator[None]:
    """The worker is stopped; it goes on at the end, so that it can end."""
    ours.child.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        ours.child.send_signal(signal.SIGCONT)


def _submit(setting: Setting, ours: Worker, count: int) -> float:
    """Seconds to submit so many jobs, one after another."""
    work = distinct(setting.model, 200, 64, setting.size(64, 32), seed=9)
    begun = time.perf_counter()
    for number in range(count):
        ours.client.submit(prompt=work.prompts[number % 200], max_tokens=work.max_tokens, temperature=0.0)
    return time.perf_counter() - begun


def _token_ms(setting: Setting, ours: Worker) -> float:
    """Milliseconds a generated token, with all slots busy; long enough for jobs to end and others to begin."""
    ours.child.send_signal(signal.SIGCONT)
    time.sleep(setting.size(8, 1))
    before = ours.snapshot()
    time.sleep(setting.size(30, 1))
    after = ours.snapshot()
    ours.child.send_signal(signal.SIGSTOP)
    return float((after["at_ns"] - before["at_ns"]) / (after["generated_tokens"] - before["generated_tokens"]) / 1e6)


def _redis_bytes(ours: Worker) -> int:
    return int(ours.connection.info("memory")["used_memory"])
