"""Which pieces share a call: the same adapters, the same length, and nobody who may make the call fail. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from celery_llama_worker.engine.plan import Adapters, Call, Piece
from celery_llama_worker.engine.scheduling.sequence import Sequence


def decode_calls(decoding: Iterable[Sequence], chunk_tokens: int) -> list[Call]:
    """One call with a row for everybody; one for each set of adapters, if there are several."""
    together: dict[Adapters, list[Piece]] = {}
    alone: list[Call] = []
    for sequence in decoding:
        if not sequence.suspect:
            together.setdefault(sequence.adapters, []).append(sequence.piece(chunk_tokens))
        elif sequence.guided is None:
            alone.append([part.piece(chunk_tokens) for part in sequence.parts])
    return [*together.values(), *alone]


def prefill_calls(reading: Iterable[Sequence], chunk_tokens: int) -> list[Call]:
    """Chunks of the same length together."""
    together: dict[tuple[Adapters, int], list[Piece]] = {}
    alone: list[Call] = []
    for sequence in reading:
        piece = sequence.piece(chunk_tokens)
        if sequence.suspect:
            alone.append([piece])
        else:
            together.setdefault((piece.adapters, len(piece.tokens)), []).append(piece)
    return [*together.values(), *alone]


def with_fewest_switches(decoding: list[Call], reading: list[Call], now: Adapters) -> list[Call]:
    """The calls of a step, decode rows first; those that need the adapters that are set already lead."""
    calls: list[Call] = []
    for part in (decoding, reading):
        sets = [now, *(call[0].adapters for call in part)]
        calls += sorted(part, key=lambda call: sets.index(call[0].adapters))
        now = calls[-1][0].adapters if calls else now
    return calls
