"""Writes random-weight GGUFs in Q8_0, so that a device or a vocabulary can be measured without a download.

Never holds more than one tensor in memory; a large one repeats a block of random values, which no kernel notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_BLOCK_BYTES = 1 << 24
#: Q8_0: a scale and 32 values of a byte each.
_VALUES, _QUANTISED_BYTES = 32, 34
#: The spread of random bytes, unscaled.
_DEVIATION = 73.9
_SPECIAL = ["<unk>", "<s>", "</s>"]
FIRST_BYTE_TOKEN = len(_SPECIAL)
FIRST_WORD_TOKEN = FIRST_BYTE_TOKEN + 256


@dataclass(frozen=True)
class Shape:
    """The sizes of a model of llama's architecture."""

    vocabulary: int
    embedding: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    context: int = 8192


EIGHT_B = Shape(128_256, 4096, 32, 32, 8, 14_336)
#: A large vocabulary, and next to nothing that computes.
VOCABULARY = Shape(131_072, 64, 1, 2, 1, 64)


def write(path: Path, shape: Shape) -> Path:
    """Write the model; the same arguments give the same bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, shape, path.stem)
    tensors = _tensors(shape)
    for name, dimensions in tensors.items():
        if len(dimensions) == 1:
            writer.add_tensor_info(name, dimensions, np.dtype(np.float32), dimensions[0] * 4)
        else:  # the writer takes a quantised tensor's shape in bytes, as numpy has it
            rows, row_bytes = dimensions[0], dimensions[1] // _VALUES * _QUANTISED_BYTES
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor_info(name, (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    chance = np.random.default_rng(0)
    for dimensions in tensors.values():
        writer.write_tensor_data(_weights(chance, dimensions))
    writer.close()
    return path


def _tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    wide, narrow = shape.embedding, shape.embedding // shape.heads * shape.kv_heads
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocabulary, wide)}
    for layer in range(shape.layers):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": (wide,),
            f"blk.{layer}.attn_q.weight": (wide, wide),
            f"blk.{layer}.attn_k.weight": (narrow, wide),
            f"blk.{layer}.attn_v.weight": (narrow, wide),
            f"blk.{layer}.attn_output.weight": (wide, wide),
            f"blk.{layer}.ffn_norm.weight": (wide,),
            f"blk.{layer}.ffn_gate.weight": (shape.feed_forward, wide),
            f"blk.{layer}.ffn_up.weight": (shape.feed_forward, wide),
            f"blk.{layer}.ffn_down.weight": (wide, shape.feed_forward),
        }
    return tensors | {"output_norm.weight": (wide,), "output.weight": (shape.vocabulary, wide)}


def _weights(chance: np.random.Generator, dimensions: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Values of such a size that activations neither vanish nor overflow."""
    if len(dimensions) == 1:
        return np.ones(dimensions, dtype=np.float32)
    rows, columns = dimensions
    row_bytes = columns // _VALUES * _QUANTISED_BYTES
    few = max(1, min(rows, _BLOCK_BYTES // row_bytes))
    blocks = np.empty((few * columns // _VALUES, _QUANTISED_BYTES), dtype=np.uint8)
    blocks[:, :2] = np.array([columns**-0.5 / _DEVIATION], dtype=np.float16).view(np.uint8)
    blocks[:, 2:] = chance.integers(0, 256, (len(blocks), _VALUES), dtype=np.uint8)
    return np.tile(blocks.reshape(few, row_bytes), (-(-rows // few), 1))[:rows]


def _describe(writer: gguf.GGUFWriter, shape: Shape, name: str) -> None:
    # A byte for each of the first tokens, so that any text can be tokenised; the others only have to be there.
    words = shape.vocabulary - FIRST_WORD_TOKEN
    tokens = [*_SPECIAL, *(f"<0x{value:02X}>" for value in range(256)), *(f" t{number}" for number in range(words))]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    types += [gguf.TokenType.NORMAL] * words
    writer.add_name(name)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.embedding // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * shape.vocabulary)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
