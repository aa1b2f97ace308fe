"""A GGUF of random weights that llama.cpp loads and decodes in milliseconds. Generated: the repository holds no model.

Its vocabulary is a sentencepiece one with byte tokens: every text can be written, and a character outside ASCII takes
several tokens. Its weights are Q8_0, with which llama.cpp's output on a CPU does not depend on the batch.
"""

from __future__ import annotations

import string
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import gguf
import numpy as np

N_EMBED, N_LAYER, N_HEAD, N_FEED_FORWARD, CONTEXT = 64, 2, 4, 128, 2048
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BOS, EOS, TURN_START, TURN_END = 1, 2, 3, 4
#: Pieces longer than a character, each made of two that exist.
PIECES = ["th", "he", "in", "an", "er", "re", "on", "at", "the", "and", "ing", "▁a", "▁the", "▁and", "▁in", '":', '{"']
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary(control: Sequence[str] = CONTROL) -> tuple[list[str], list[float], list[gguf.TokenType]]:
    """Tokens, scores and types, in order of their ids."""
    characters = ["▁", *(character for character in string.printable if character.isprintable() and character != " ")]
    plain = characters + PIECES
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokens = ["<unk>", *control, *bytes_, *plain]
    scores = [0.0] * (1 + len(control) + 256) + [-float(len(plain) - rank) for rank in range(len(plain))]
    types = [
        gguf.TokenType.UNKNOWN,
        *[gguf.TokenType.CONTROL] * len(control),
        *[gguf.TokenType.BYTE] * 256,
        *[gguf.TokenType.NORMAL] * len(plain),
    ]
    return tokens, scores, types


def add_vocabulary(
    writer: gguf.GGUFWriter,
    chat_template: str | None = None,
    control: Sequence[str] = CONTROL,
    *,
    space_prefix: bool = False,
) -> None:
    """Write the vocabulary into a model. `space_prefix`: a text begins with a space, as Llama 2 and Mistral want it."""
    tokens, scores, types = vocabulary(control)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(TURN_END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(space_prefix)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def write_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    quantised: bool = True,
    chat_template: str | None = CHAT_TEMPLATE,
    pooling: gguf.PoolingType | None = None,
    control: Sequence[str] = CONTROL,
    space_prefix: bool = False,
) -> Path:
    """Write the model; the same arguments give the same bytes. `control`: BOS, EOS and others."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(N_EMBED)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FEED_FORWARD)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD // 2)
    writer.add_rope_dimension_count(N_EMBED // N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    add_vocabulary(writer, chat_template, control, space_prefix=space_prefix)
    _add_weights(writer, np.random.default_rng(seed), len(vocabulary(control)[0]), quantised=quantised)
    finish(writer)
    return path


def _add_weights(writer: gguf.GGUFWriter, random: np.random.Generator, n_vocab: int, *, quantised: bool) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.F32

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        weights = (random.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(N_EMBED, dtype=np.float32))

    matrix("token_embd", n_vocab, N_EMBED, scale=8.0)
    for layer in range(N_LAYER):
        norm(f"blk.{layer}.attn_norm")
        matrix(f"blk.{layer}.attn_q", N_EMBED, N_EMBED, scale=2.0)
        matrix(f"blk.{layer}.attn_k", N_EMBED // 2, N_EMBED, scale=2.0)
        matrix(f"blk.{layer}.attn_v", N_EMBED // 2, N_EMBED, scale=2.0)
        matrix(f"blk.{layer}.attn_output", N_EMBED, N_EMBED, scale=2.0)
        norm(f"blk.{layer}.ffn_norm")
        matrix(f"blk.{layer}.ffn_gate", N_FEED_FORWARD, N_EMBED, scale=2.0)
        matrix(f"blk.{layer}.ffn_up", N_FEED_FORWARD, N_EMBED, scale=2.0)
        matrix(f"blk.{layer}.ffn_down", N_EMBED, N_FEED_FORWARD, scale=2.0)
    norm("output_norm")
    matrix("output", n_vocab, N_EMBED, scale=4.0)


def write_tiny_adapter(path: Path, *, seed: int = 0, architecture: str = "llama", quantised: bool = True) -> Path:
    """Write a LoRA adapter of the tiny model, strong enough to change what it says."""
    random = np.random.default_rng(1000 + seed)
    rank = 32  # what a row of Q8_0 has at least
    kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.F32
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for layer in range(N_LAYER):
        for name, rows in (("attn_q", N_EMBED), ("ffn_down", N_EMBED), ("ffn_up", N_FEED_FORWARD)):
            columns = N_FEED_FORWARD if name == "ffn_down" else N_EMBED
            for part, shape in (("a", (rank, columns)), ("b", (rows, rank))):
                weights = (random.standard_normal(shape) * 1.5 / shape[1] ** 0.5).astype(np.float32)
                tensor = gguf.quants.quantize(weights, kind)
                writer.add_tensor(f"blk.{layer}.{name}.weight.lora_{part}", tensor, raw_dtype=kind)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@cache
def tiny_model() -> Path:
    """The tiny model's file, written once a process and deleted with it."""
    folder = tempfile.TemporaryDirectory(prefix="tiny-model-")
    _kept.append(folder)
    return write_tiny_model(Path(folder.name) / "tiny.gguf")


_kept: list[tempfile.TemporaryDirectory[str]] = []
