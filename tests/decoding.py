"""Driving an engine by hand, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from celery_llama_worker.engine.plan import CallResult, Copy, Engine, Piece, Plan, Sampler, Trim


def run(engine: Engine, *pieces: Piece, operations: Sequence[Copy | Trim] = ()) -> CallResult:
    """One plan of one call; its result."""
    (result,) = engine.execute(Plan(operations, [pieces]))
    return result


def operate(engine: Engine, *operations: Copy | Trim) -> None:
    """A plan without calls."""
    assert not list(engine.execute(Plan(operations)))


def read(
    engine: Engine, slot: int, tokens: Sequence[int], sampler: Sampler | None = None, start: int = 0
) -> int | None:
    """Read tokens in one call; the sampled token if there is a sampler."""
    result = run(engine, Piece(slot, start, tokens, sampler))
    assert result.error is None
    assert not result.faults
    return result.sampled[slot].token if sampler is not None else None


def decode(engine: Engine, slot: int, sampler: Sampler, start: int, token: int | None, count: int) -> list[int]:
    """Decode one token after another, beginning with `token` at position `start`; what was sampled."""
    sampled = []
    for position in range(start, start + count):
        assert token is not None
        token = read(engine, slot, [token], sampler, position)
        assert token is not None
        sampled.append(token)
    return sampled


def generate(engine: Engine, slot: int, prompt: Sequence[int], sampler: Sampler, count: int) -> list[int]:
    """Read a prompt into an empty slot and decode; `count` sampled tokens."""
    operate(engine, Trim(slot, 0))
    first = read(engine, slot, prompt, sampler)
    assert first is not None
    return [first, *decode(engine, slot, sampler, len(prompt), first, count - 1)]
