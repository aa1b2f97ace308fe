"""The model's weights and vocabulary: loading a GGUF, tokens to bytes, text to tokens.

Built by the composition root and read from any thread: llama.cpp's model and vocabulary are constant once loaded. Also
routes llama.cpp's own log, which is one for the whole process, to Python's.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import llama_cpp.llama_cpp as lib

from celery_llama_worker.engine.llama.deep_stack import on_deep_stack
from celery_llama_worker.engine.llama.dry import DrySamplers
from celery_llama_worker.errors import EngineFault, StartupError

logger = logging.getLogger(__name__)

GGUF_MAGIC = b"GGUF"
#: llama.cpp's pooling types as a GGUF's metadata have them.
_POOLING = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}
#: GGML_LOG_LEVEL_ERROR in ggml.h.
_LOG_LEVEL_ERROR = 4
#: What llama.cpp's pre-tokenisers take of the stack for every byte of a run; 350 were measured.
_STACK_BYTES_PER_BYTE = 512
#: Texts up to this length are tokenised on whatever thread asks: any stack is deep enough.
_SHALLOW_BYTES = 4_096
#: What llama.cpp said at level error; it gives reasons only through its log, the first line being the most exact.
_complaints: deque[str] = deque(maxlen=8)


@lib.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _to_python_log(level: int, text: bytes, _user_data: object) -> None:
    line = text.decode(errors="replace").strip()
    if level == _LOG_LEVEL_ERROR and line:
        _complaints.append(line)
    if line.strip(".") and logger.isEnabledFor(logging.DEBUG):
        logger.debug("llama.cpp: %s", line)


def route_llama_log() -> None:
    """Send llama.cpp's log to Python's at level debug; importing llama_cpp sends it to stderr."""
    lib.llama_log_set(_to_python_log, ctypes.c_void_p())


def complaint() -> str:
    """What llama.cpp complained of since this was asked last, in parentheses after a space; empty if of nothing."""
    lines = list(_complaints)
    _complaints.clear()
    return f" ({lines[0].partition(': ')[2] or lines[0]})" if lines else ""


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that only the model's maker means to write; and whether it takes the white space beside it with it."""

    token: int
    strips_left: bool = False
    strips_right: bool = False
    #: It stands for what the vocabulary cannot write.
    unknown: bool = False


class LlamaModel:
    """A loaded GGUF: weights, vocabulary, metadata. Implements `Vocabulary`; any thread, until it is closed."""

    def __init__(
        self, path: Path, *, gpu_layers: int = -1, name: str = "", lora: Mapping[str, Path] | None = None
    ) -> None:
        """Load the weights; raises StartupError with one line if the file is not a model that llama.cpp can run."""
        _check_file(path, "model")
        route_llama_log()
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        complaint()  # an earlier one is not about this file
        pointer = lib.llama_model_load_from_file(str(path).encode(), params)
        if not pointer:
            raise StartupError(f"llama.cpp cannot load {path}{complaint()}; is the file complete, and a text model?")
        self.path = path
        self.pointer: Any = pointer
        self.vocab: Any = lib.llama_model_get_vocab(pointer)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(pointer)
        self.name = name or path.stem
        self.architecture = self.metadata("general.architecture") or "unknown"
        #: How the vectors of a text's tokens become one; None of a model that generates.
        self.pooling = _POOLING.get(self.metadata(f"{self.architecture}.pooling_type"))
        #: Values of an embedding.
        self.n_embed: int = lib.llama_model_n_embd_out(pointer)
        self.chat_template = _text_or_none(lib.llama_model_chat_template(pointer, None))
        self.adds_bos: bool = lib.llama_vocab_get_add_bos(self.vocab)
        self.bos: int = lib.llama_vocab_bos(self.vocab)
        self.eos: int = lib.llama_vocab_eos(self.vocab)
        #: Tokens that end a generation.
        self.end_tokens = frozenset(token for token in range(self.n_vocab) if lib.llama_vocab_is_eog(self.vocab, token))
        #: Tokens that this model must never produce.
        self.suppressed_tokens = _suppressed_tokens(self.vocab)
        #: Whether cells may be cut at any position: not a recurrent state, nor a window that has dropped old cells.
        self.can_trim = not (
            lib.llama_model_is_recurrent(pointer)
            or lib.llama_model_is_hybrid(pointer)
            or lib.llama_model_n_swa(pointer) > 0
        )
        self._pieces: list[bytes | None] = [None] * self.n_vocab
        self.dry_samplers = DrySamplers(
            self.vocab, self.n_vocab, self.n_ctx_train, partial(self._read_piece, special=True)
        )
        #: LoRA adapters by name; llama.cpp frees them with the model.
        self.adapters: dict[str, Any] = {}
        try:
            self._check_use()
            self.adapters.update((adapter, self._load_adapter(file)) for adapter, file in (lora or {}).items())
        except StartupError:
            self.close()
            raise

    def _check_use(self) -> None:
        encodes, decodes = lib.llama_model_has_encoder(self.pointer), lib.llama_model_has_decoder(self.pointer)
        if self.pooling == "rank":
            raise StartupError(f"{self.path} is a reranking model; only generating and embedding ones can be used here")
        if self.pooling is not None:
            if encodes and decodes:
                raise StartupError(f"{self.path} has an encoder and a decoder, and such models cannot embed here")
        elif encodes or not decodes or self.metadata(f"{self.architecture}.attention.causal") == "false":
            raise StartupError(f"{self.path} is not a causal decoder-only model, and only those can generate here")

    def _load_adapter(self, path: Path) -> Any:
        _check_file(path, "adapter")
        complaint()
        adapter = lib.llama_adapter_lora_init(self.pointer, str(path).encode())
        if not adapter:
            raise StartupError(f"llama.cpp cannot load {path}{complaint()}; is it a LoRA adapter of this very model?")
        if lib.llama_adapter_get_alora_n_invocation_tokens(adapter):
            raise StartupError(f"the adapter {path} is an activated LoRA (aLoRA), and those are not supported")
        return adapter

    def metadata(self, key: str) -> str:
        """A value of the GGUF's metadata as text; empty if there is none."""
        needed = lib.llama_model_meta_val_str(self.pointer, key.encode(), ctypes.create_string_buffer(1), 1)
        if needed < 0:
            return ""
        buffer = ctypes.create_string_buffer(needed + 1)
        lib.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    @cached_property
    def control_tokens(self) -> Mapping[str, ControlToken]:
        """What `parse_special` reads as a token, by its text."""
        return _control_tokens(self.vocab, self.n_vocab)

    def piece(self, token: int) -> bytes:
        """The token's bytes; empty for control tokens."""
        piece = self._pieces[token]
        if piece is None:  # two threads may both compute it, with the same outcome
            piece = self._pieces[token] = self._read_piece(token, special=False)
        return piece

    def special_text(self, token: int) -> str:
        """How a control token is written, `<s>` for instance; empty for no token."""
        return "" if token < 0 else self._read_piece(token, special=True).decode(errors="replace")

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = lib.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = lib.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:size]

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return token in self.end_tokens

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to token ids, however long the text is; raises EngineFault if there is no memory for it.

        `add_special` adds BOS where the vocabulary wants it; `parse_special` reads `<s>` as a token, not as text.
        """
        data = text.encode(errors="replace")
        if len(data) <= _SHALLOW_BYTES:
            return self._tokenize(data, add_special, parse_special)
        try:
            return on_deep_stack(
                lambda: self._tokenize(data, add_special, parse_special), len(data) * _STACK_BYTES_PER_BYTE
            )
        except MemoryError as error:
            raise EngineFault(f"this machine has no memory to tokenise a text of {len(data):,} bytes") from error

    def _tokenize(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        tokens = (lib.llama_token * (len(data) + 2))()
        count = lib.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), add_special, parse_special)
        if count < 0:  # more tokens than bytes: an unusual vocabulary, but the call says how many
            tokens = (lib.llama_token * -count)()
            count = lib.llama_tokenize(self.vocab, data, len(data), tokens, len(tokens), add_special, parse_special)
        return list(tokens[:count])

    def close(self) -> None:
        """Free the weights; contexts and samplers of this model must be closed before. Safe to call twice."""
        self.dry_samplers.close()
        if self.pointer:
            lib.llama_model_free(self.pointer)
            self.pointer = self.vocab = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_file(path: Path, what: str) -> None:
    """Tell the common mistakes apart, which llama.cpp reports all alike."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except IsADirectoryError:
        raise StartupError(f"the {what} {path} is a folder; give a .gguf file") from None
    except OSError as error:
        raise StartupError(f"cannot read the {what} {path}: {error.strerror or error}") from error
    if magic != GGUF_MAGIC:
        raise StartupError(f"the {what} {path} is not a GGUF file")


def _control_tokens(vocab: Any, n_vocab: int) -> Mapping[str, ControlToken]:
    found: dict[str, ControlToken] = {}
    for token in range(n_vocab):
        kind = lib.llama_vocab_get_attr(vocab, token)
        if kind & (lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN):
            text = _text_or_none(lib.llama_vocab_get_text(vocab, token))
            if text:
                attributes = lib.LLAMA_TOKEN_ATTR_LSTRIP, lib.LLAMA_TOKEN_ATTR_RSTRIP, lib.LLAMA_TOKEN_ATTR_UNKNOWN
                found.setdefault(text, ControlToken(token, *(bool(kind & attribute) for attribute in attributes)))
    return found


def _suppressed_tokens(vocab: Any) -> frozenset[int]:
    count = ctypes.c_int32(0)
    tokens = lib.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(count))
    return frozenset(tokens[: count.value]) if count.value else frozenset()


def _text_or_none(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
