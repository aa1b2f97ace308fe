"""The array that llama.cpp's samplers work in, filled from a row of logits. Engine thread only."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from celery_llama_worker.errors import EngineFault

Logits = npt.NDArray[np.float32]


class Candidates:
    """The array of candidates that samplers work in, one for the whole engine: (n_vocab,) of id, logit, probability."""

    def __init__(self, n_vocab: int) -> None:
        self._data = np.zeros(n_vocab, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        self._loaded = self._data
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._start = ctypes.cast(self._data.ctypes.data, ctypes.POINTER(lib.llama_token_data))
        self._array: Any = lib.llama_token_data_array()
        self._pointer = ctypes.pointer(self._array)
        self._one_data: Any = lib.llama_token_data()
        self._one_array: Any = lib.llama_token_data_array(data=ctypes.pointer(self._one_data))
        self._one_pointer = ctypes.pointer(self._one_array)

    def load(self, row: Logits, ids: npt.NDArray[np.intp] | None = None) -> None:
        """Start from a row of logits, or from those of some tokens only, ids ascending."""
        self._loaded = self._data[: len(row if ids is None else ids)]
        self._loaded["id"] = self._ids if ids is None else ids  # the last sampler may have sorted them
        self._loaded["logit"] = row if ids is None else row[ids]
        self._array.data = self._start  # XTC drops the likeliest by moving the pointer
        self._array.size = len(self._loaded)
        self._array.selected = -1
        self._array.sorted = False

    def apply(self, sampler: Any) -> None:
        """Let one of llama.cpp's samplers (or chains) work on the candidates."""
        lib.llama_sampler_apply(sampler, self._pointer)

    @property
    def logits(self) -> Logits:
        """The candidates' logits as they are now, until something sorts or drops candidates."""
        return self._loaded["logit"]

    def best(self) -> int:
        """The likeliest token, the first of equals; before anything has sorted the candidates."""
        return int(self._loaded["id"][self.logits.argmax()])

    def selected(self) -> int:
        """The token that the chain chose."""
        if not 0 <= self._array.selected < self._array.size:
            raise EngineFault("the sampler chose no token")
        return int(self._array.data[self._array.selected].id)

    def allowed(self, grammar: Any, token: int) -> bool:
        """Whether the grammar admits the token: microseconds, where the whole vocabulary takes milliseconds."""
        self._one_data.id, self._one_data.logit, self._one_data.p = token, 1.0, 0.0
        self._one_array.size, self._one_array.selected, self._one_array.sorted = 1, -1, False
        lib.llama_sampler_apply(grammar, self._one_pointer)
        return bool(self._one_data.logit != -math.inf)
