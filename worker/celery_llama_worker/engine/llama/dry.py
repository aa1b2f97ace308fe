"""DRY samplers: one for each set of options, copied for every choice. Owned by the model; used on the admit thread.

llama.cpp goes through the whole vocabulary for every sequence breaker, and keeps an entry for every token that has it.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob

#: llama.cpp allocates by this; a larger value from a job could end the process.
MAX_WINDOW_TOKENS = 65_536
#: Entries of a job's samplers together, at about 72 bytes each.
_MOST_ENTRIES = 1 << 18
#: Sets of options that are remembered.
_MOST_ORIGINALS = 4


class DrySamplers:
    """Makes the DRY samplers of one model's jobs."""

    def __init__(self, vocab: Any, n_vocab: int, n_ctx_train: int, piece: Callable[[int], bytes]) -> None:
        """`piece` gives a token's bytes, a control token's too."""
        self._vocab = vocab
        self._n_vocab = n_vocab
        self._n_ctx_train = n_ctx_train
        self._piece = piece
        self._pieces: list[bytes] = []
        self._originals: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def make(self, job: GenerateJob) -> Any:
        """A sampler for one of the job's choices; raises InvalidJob if all of them would take too much memory."""
        breakers = [text.encode(errors="replace") for text in job.dry_sequence_breakers]
        entries = sum(self._entries(breaker) for breaker in breakers)
        if entries * job.n > _MOST_ENTRIES:
            raise InvalidJob(f"dry_sequence_breakers: they occur in {entries:,} tokens of this vocabulary, too many")
        window = job.dry_penalty_last_n if job.dry_penalty_last_n >= 0 else self._n_ctx_train
        window, allowed = min(window, MAX_WINDOW_TOKENS), min(job.dry_allowed_length, MAX_WINDOW_TOKENS)
        options = (job.dry_multiplier, job.dry_base, allowed, window)
        key = (*options, *breakers)
        if key not in self._originals:
            self._originals[key] = self._original(options, breakers)
            if len(self._originals) > _MOST_ORIGINALS:
                lib.llama_sampler_free(self._originals.popitem(last=False)[1])
        self._originals.move_to_end(key)
        return lib.llama_sampler_clone(self._originals[key])

    def _original(self, options: tuple[float, float, int, int], breakers: Sequence[bytes]) -> Any:
        array = (ctypes.c_char_p * len(breakers))(*breakers)
        return lib.llama_sampler_init_dry(self._vocab, *options, array, len(breakers))

    def _entries(self, breaker: bytes) -> int:
        """Tokens that contain the breaker, or end as it begins."""
        if not self._pieces:
            self._pieces = [self._piece(token) for token in range(self._n_vocab)]
        beginnings = tuple(breaker[:length] for length in range(1, len(breaker)))
        return sum(breaker in piece or piece.endswith(beginnings) for piece in self._pieces)

    def close(self) -> None:
        """Free the originals; safe to call twice."""
        while self._originals:
            lib.llama_sampler_free(self._originals.popitem()[1])
