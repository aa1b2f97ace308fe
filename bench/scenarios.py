"""What queues are for: a shared beginning, mixed lengths, a burst while a long prompt is read, ten thousand jobs.

Distinct prompts are in `throughput.py`.
"""

from __future__ import annotations

import itertools
import signal
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

    def fresh() -> Work:
        return shared_prefix(setting.model, slots, prefix, tokens, next(seeds))

    print(f"\nshared prefix: {fresh()}")
    with ExitStack() as stack:
        ours = stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, threads=setting.threads))
        alone = stack.enter_context(
            worker(stack.enter_context(server()), setting.path, slots, threads=setting.threads, share_prefixes=False)
        )
        sides: dict[str, Callable[[], float]] = {
            "sharing": lambda: queue.run(ours, fresh()).seconds,
            "not sharing": lambda: queue.run(alone, fresh()).seconds,
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
        if after > begun and before < ended
    ]
    return float(max(gaps, default=0) / 1e6)


def backlog(setting: Setting) -> dict[str, Any]:
    """What 10,000 waiting jobs cost: to submit them, to keep them, and while others are decoded.

    Two servers and workers, one with the jobs, one without; the one with them stands still when it is not measured.
    """
    count, slots = setting.size(10_000, 200), setting.size(32, 4)
    print(f"\nbacklog: {count} queued jobs")
    options = {"threads": setting.threads, "lease_seconds": 100_000, "stall_seconds": 100_000, "drain_seconds": 0}
    with ExitStack() as stack:
        quiet, ours = (
            stack.enter_context(worker(stack.enter_context(server()), setting.path, slots, observed=True, **options))
            for _ in range(2)
        )
        queue.run(ours, distinct(setting.model, slots, 64, 16, seed=1))
        before, resident = _redis_bytes(ours), ours.resident_bytes()
        stack.enter_context(_standing_still(ours))
        seconds = _submit(setting, ours, count)
        kept = (_redis_bytes(ours) - before) / count

        def with_backlog() -> float:
            ours.child.send_signal(signal.SIGCONT)
            value = _step_ms(setting, ours)
            ours.child.send_signal(signal.SIGSTOP)
            return value

        def without() -> float:
            queue.submit(quiet, distinct(setting.model, 3 * slots, 64, setting.size(64, 32), seed=2))
            value = _step_ms(setting, quiet)
            quiet.wait_until_open(0)
            return value

        rounds = setting.referee.play({"with": with_backlog, "without": without})
        grown = ours.resident_bytes() - resident
    return rounds.figures(
        unit="ms",
        jobs=count,
        submitted_per_s=round(count / seconds, 1),
        redis_bytes_per_job=round(kept),
        worker_grew_mb=round(grown / 2**20, 1),
        **{"with/without": round(rounds.ratio("with", "without"), 4)},
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


def _step_ms(setting: Setting, ours: Worker) -> float:
    """Milliseconds a step, over some seconds with all slots busy."""
    time.sleep(1.0)
    before = ours.snapshot()
    time.sleep(setting.size(5, 1))
    after = ours.snapshot()
    return float((after["at_ns"] - before["at_ns"]) / (after["steps"] - before["steps"]) / 1e6)


def _redis_bytes(ours: Worker) -> int:
    return int(ours.connection.info("memory")["used_memory"])
