"""Writes random-weight GGUFs of a given shape and type, so that a device can be measured without a download.

`python -m bench model 8b q8_0 FILE`. Never holds more than one tensor in memory; a large one repeats a block of random
values, which no kernel notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_BLOCK_BYTES = 1 << 24


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


SHAPES = {
    "tiny": Shape(512, 256, 2, 4, 2, 512),
    "135m": Shape(49_152, 576, 30, 9, 3, 1536),
    "1b": Shape(128_256, 2048, 16, 32, 8, 8192),
    "8b": Shape(128_256, 4096, 32, 32, 8, 14_336),
}
TYPES = {
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}


def write(path: Path, shape: str, kind: str) -> Path:
    """Write the model; the same arguments give the same bytes."""
    sizes, type_ = SHAPES[shape], TYPES[kind]
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, sizes, f"random-{shape}-{kind}")
    tensors = _tensors(sizes)
    for name, dimensions in tensors.items():
        tensor_type = gguf.GGMLQuantizationType.F32 if len(dimensions) == 1 else type_
        block, size = gguf.GGML_QUANT_SIZES[tensor_type]
        nbytes = int(np.prod(dimensions)) // block * size
        # The writer takes a quantised tensor's shape in bytes, as numpy has it.
        stored = (*dimensions[:-1], dimensions[-1] // block * size)
        quantised = tensor_type in (TYPES["q8_0"], TYPES["q4_0"])
        dtype = np.uint8 if quantised else np.float32 if tensor_type == gguf.GGMLQuantizationType.F32 else np.float16
        shape_ = stored if quantised else dimensions
        writer.add_tensor_info(name, shape_, np.dtype(dtype), nbytes, raw_dtype=tensor_type if quantised else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    chance = np.random.default_rng(0)
    for dimensions in tensors.values():
        writer.write_tensor_data(_weights(chance, dimensions, kind))
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


def _weights(chance: np.random.Generator, dimensions: tuple[int, ...], kind: str) -> np.ndarray[Any, Any]:
    """Values of such a size that activations neither vanish nor overflow."""
    if len(dimensions) == 1:
        return np.ones(dimensions, dtype=np.float32)
    rows, columns = dimensions
    spread = columns**-0.5
    if kind == "f16":
        row_bytes = columns * 2
        few = max(1, min(rows, _BLOCK_BYTES // row_bytes))
        block: np.ndarray[Any, Any] = (chance.standard_normal((few, columns)) * spread).astype(np.float16)
    else:
        values, deviation = (32, 73.9) if kind == "q8_0" else (16, 4.6)  # bytes of values, and their spread unscaled
        row_bytes = columns // 32 * (2 + values)
        few = max(1, min(rows, _BLOCK_BYTES // row_bytes))
        blocks = np.empty((few * columns // 32, 2 + values), dtype=np.uint8)
        blocks[:, :2] = np.array([spread / deviation], dtype=np.float16).view(np.uint8)
        blocks[:, 2:] = chance.integers(0, 256, (len(blocks), values), dtype=np.uint8)
        block = blocks.reshape(few, row_bytes)
    repeats = -(-rows // few)
    return np.tile(block, (repeats, 1))[:rows]


def _describe(writer: gguf.GGUFWriter, shape: Shape, name: str) -> None:
    # A byte for each of the first tokens, so that any text can be tokenised; the others only have to be there.
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokens = [*special, *bytes_, *(f"t{number}" for number in range(shape.vocabulary - 259))]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    types += [gguf.TokenType.NORMAL] * (shape.vocabulary - len(types))
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
