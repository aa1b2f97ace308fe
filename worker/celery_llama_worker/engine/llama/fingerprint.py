"""What tells a model's file from every other, without reading all of it. At start; any thread.

A worker may go on with what another has begun only if its weights and its vocabulary are the same, and a name does not
say that. Of each file the fingerprint takes the size, everything before the tensors' data (metadata, vocabulary, chat
template, the tensors' names, types and places), and two blocks of 4 KiB of every tensor: what is trained further,
merged or quantised differently departs in whole tensors. That is some MB of a file of 40 GB.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from llama_cpp._ggml import libggml

from celery_llama_worker.errors import StartupError

_BLOCK_BYTES = 4096
#: Where in a tensor the blocks begin; not at its edges, where embeddings have tokens that nobody uses.
_PLACES = (1 / 3, 2 / 3)
#: Hexadecimal digits that are kept.
_DIGITS = 16
_SHARD = re.compile(r"(?P<begin>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class _InitParams(ctypes.Structure):
    """`struct gguf_init_params` (gguf.h)."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def fingerprint(path: Path) -> str:
    """The same for the same model or adapter, wherever its file lies; raises StartupError if it cannot be read.

    A model in several files, as llama.cpp names them, is one.
    """
    digest = hashlib.sha256()
    try:
        for file in _shards(path):
            _add_file(digest, file)
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()[:_DIGITS]


def _shards(path: Path) -> Iterator[Path]:
    match = _SHARD.fullmatch(path.name)
    if match is None:
        yield path
        return
    for number in range(1, int(match["count"]) + 1):
        yield path.with_name(f"{match['begin']}-{number:05d}-of-{match['count']}.gguf")


def _add_file(digest: Any, path: Path) -> None:
    data_offset, tensors = _layout(path)
    with path.open("rb", buffering=0) as file:
        digest.update(f"{os.fstat(file.fileno()).st_size} {data_offset} ".encode())
        _add_part(digest, file, 0, data_offset)
        for offset, size in tensors:
            for place in _PLACES:
                _add_part(digest, file, data_offset + offset + int(size * place), min(_BLOCK_BYTES, size))


def _add_part(digest: Any, file: BinaryIO, start: int, size: int) -> None:
    file.seek(start)
    while size > 0 and (data := file.read(min(size, 1 << 20))):
        digest.update(data)
        size -= len(data)


def _layout(path: Path) -> tuple[int, list[tuple[int, int]]]:
    """Where the tensors' data begin, and of each tensor where in them it is and its bytes."""
    read = _function("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _InitParams)
    gguf = read(os.fsencode(path), _InitParams(no_alloc=True, ctx=None))
    if not gguf:
        raise StartupError(f"{path} is not a GGUF file that can be read")
    try:
        count = _function("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p)(gguf)
        offset, size = (
            _function(f"gguf_get_tensor_{what}", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
            for what in ("offset", "size")
        )
        begin = _function("gguf_get_data_offset", ctypes.c_size_t, ctypes.c_void_p)(gguf)
        return begin, [(offset(gguf, number), size(gguf, number)) for number in range(count)]
    finally:
        _function("gguf_free", None, ctypes.c_void_p)(gguf)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """One of ggml's functions, which llama-cpp-python does not wrap."""
    return ctypes.CFUNCTYPE(result, *arguments)((name, libggml))
