"""Tiny models of other kinds than the usual: an encoder, a recurrent one, a hybrid, one with sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import gguf
import numpy as np

from tests.tiny_model import CONTEXT, CONTROL, N_EMBED, N_FEED_FORWARD, N_HEAD, add_vocabulary, finish, vocabulary

#: Tokens that a layer with a sliding window can look back.
WINDOW = 24
ENCODER_CONTEXT = 128
WORDS = ["the", "thin", "king", "ate", "an", "apple", "in", "inn", "and", "other", "##s", "##ed", ".", "##ing", "red"]
ENCODER_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{w}".replace("▁##", "") for w in WORDS)]
CLS, SEP = 2, 3


class Weights:
    """Random weights, written one after another; the same seed gives the same bytes."""

    def __init__(self, writer: gguf.GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, columns: int, scale: float = 1.0, *, quantised: bool = True) -> None:
        """A matrix that keeps the length of what it is multiplied with, times the scale."""
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.F32
        weights = (self._random.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float32)
        self._writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)

    def values(self, name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        """A tensor of just these values."""
        self._writer.add_tensor(name, values.astype(np.float32))

    def norm(self, name: str, *, bias: bool = False) -> None:
        """A norm that changes nothing."""
        self.values(f"{name}.weight", np.ones(N_EMBED))
        if bias:
            self.values(f"{name}.bias", np.zeros(N_EMBED))

    def feed_forward(self, layer: int) -> None:
        """The usual gated feed-forward layer."""
        self.matrix(f"blk.{layer}.ffn_gate.weight", N_FEED_FORWARD, N_EMBED, 2.0)
        self.matrix(f"blk.{layer}.ffn_up.weight", N_FEED_FORWARD, N_EMBED, 2.0)
        self.matrix(f"blk.{layer}.ffn_down.weight", N_EMBED, N_FEED_FORWARD, 2.0)

    def attention(self, layer: int) -> None:
        """The usual attention, two heads to a pair of keys and values."""
        for name, rows in (("q", N_EMBED), ("k", N_EMBED // 2), ("v", N_EMBED // 2), ("output", N_EMBED)):
            self.matrix(f"blk.{layer}.attn_{name}.weight", rows, N_EMBED, 2.0)


def _decoder(
    path: Path, architecture: str, layers: int, vocabulary: Callable[[gguf.GGUFWriter], None] = add_vocabulary
) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(N_EMBED)
    writer.add_block_count(layers)
    writer.add_layer_norm_rms_eps(1e-5)
    vocabulary(writer)
    return writer


def _byte_vocabulary(writer: gguf.GGUFWriter, pre_tokeniser: str) -> None:
    """A token for each byte, written as GPT-2 writes them, and one for two spaces: there must be a merge."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in shown]
    tokens = [chr(value) for value in shown] + [chr(0x100 + rank) for rank in range(len(hidden))] + ["ĠĠ", *CONTROL]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokeniser)
    writer.add_token_list(tokens)
    plain, control = [gguf.TokenType.NORMAL] * 257, [gguf.TokenType.CONTROL] * len(CONTROL)
    writer.add_token_types([*plain, *control])
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)


def write_tiny_bytes(path: Path, pre_tokeniser: str, *, seed: int = 0) -> Path:
    """The usual model, but with a token for each byte and a pre-tokeniser that cuts texts into words first."""
    writer = _decoder(path, "llama", 1, partial(_byte_vocabulary, pre_tokeniser=pre_tokeniser))
    writer.add_feed_forward_length(N_FEED_FORWARD)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD // 2)
    weights = Weights(writer, seed)
    weights.matrix("token_embd.weight", 257 + len(CONTROL), N_EMBED, 8.0)
    weights.norm("blk.0.attn_norm")
    weights.norm("blk.0.ffn_norm")
    weights.attention(0)
    weights.feed_forward(0)
    weights.norm("output_norm")
    weights.matrix("output.weight", 257 + len(CONTROL), N_EMBED, 4.0)
    finish(writer)
    return path


def write_tiny_mamba(path: Path, *, seed: int = 0) -> Path:
    """A recurrent model: a state in place of cells."""
    inner, state, rank, kernel = 2 * N_EMBED, 16, 4, 4
    writer = _decoder(path, "mamba", 2)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    weights = Weights(writer, seed)
    weights.matrix("token_embd.weight", len(vocabulary()[0]), N_EMBED, 8.0)
    for layer in range(2):
        weights.norm(f"blk.{layer}.attn_norm")
        weights.matrix(f"blk.{layer}.ssm_in.weight", 2 * inner, N_EMBED, 2.0)
        weights.matrix(f"blk.{layer}.ssm_conv1d.weight", inner, kernel, 1.0, quantised=False)
        weights.values(f"blk.{layer}.ssm_conv1d.bias", np.zeros(inner))
        weights.matrix(f"blk.{layer}.ssm_x.weight", rank + 2 * state, inner, 2.0)
        weights.matrix(f"blk.{layer}.ssm_dt.weight", inner, rank, 1.0, quantised=False)
        weights.values(f"blk.{layer}.ssm_dt.bias", np.zeros(inner))
        weights.values(f"blk.{layer}.ssm_a", -np.tile(np.linspace(0.05, 1.0, state), (inner, 1)))
        weights.values(f"blk.{layer}.ssm_d", np.ones(inner))
        weights.matrix(f"blk.{layer}.ssm_out.weight", N_EMBED, inner, 2.0)
    weights.norm("output_norm")
    weights.matrix("output.weight", len(vocabulary()[0]), N_EMBED, 4.0)
    finish(writer)
    return path


def write_tiny_hybrid(path: Path, *, seed: int = 0) -> Path:
    """Layers with a state and layers with cells, by turns (LFM2)."""
    layers = 4
    writer = _decoder(path, "lfm2", layers)
    writer.add_feed_forward_length(N_FEED_FORWARD)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv([0 if layer % 2 == 0 else N_HEAD // 2 for layer in range(layers)])
    writer.add_shortconv_l_cache(3)
    weights = Weights(writer, seed)
    weights.matrix("token_embd.weight", len(vocabulary()[0]), N_EMBED, 8.0)
    for layer in range(layers):
        weights.norm(f"blk.{layer}.attn_norm")
        weights.norm(f"blk.{layer}.ffn_norm")
        weights.feed_forward(layer)
        if layer % 2:
            weights.attention(layer)
            for name in "qk":
                weights.values(f"blk.{layer}.attn_{name}_norm.weight", np.ones(N_EMBED // N_HEAD))
        else:
            weights.matrix(f"blk.{layer}.shortconv.conv.weight", N_EMBED, 3, 1.0, quantised=False)
            weights.matrix(f"blk.{layer}.shortconv.in_proj.weight", 3 * N_EMBED, N_EMBED, 2.0)
            weights.matrix(f"blk.{layer}.shortconv.out_proj.weight", N_EMBED, N_EMBED, 2.0)
    weights.norm("token_embd_norm")
    weights.matrix("output.weight", len(vocabulary()[0]), N_EMBED, 4.0)
    finish(writer)
    return path


def write_tiny_windows(path: Path, *, seed: int = 0) -> Path:
    """Every other layer looks back `WINDOW` tokens and no further (Gemma 2)."""
    layers = 4
    writer = _decoder(path, "gemma2", layers)
    writer.add_feed_forward_length(N_FEED_FORWARD)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD // 2)
    writer.add_key_length(N_EMBED // N_HEAD)
    writer.add_value_length(N_EMBED // N_HEAD)
    writer.add_sliding_window(WINDOW)
    weights = Weights(writer, seed)
    weights.matrix("token_embd.weight", len(vocabulary()[0]), N_EMBED, 8.0)
    for layer in range(layers):
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            weights.norm(f"blk.{layer}.{name}")
        weights.attention(layer)
        weights.feed_forward(layer)
    weights.norm("output_norm")
    finish(writer)
    return path


def write_tiny_encoder(path: Path, *, seed: int = 0, pooling: gguf.PoolingType | None = gguf.PoolingType.CLS) -> Path:
    """A BERT: every token looks at all others, and the whole text becomes one vector."""
    layers = 2
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny encoder")
    writer.add_context_length(ENCODER_CONTEXT)
    writer.add_embedding_length(N_EMBED)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(N_FEED_FORWARD)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.add_vocab_size(len(ENCODER_VOCABULARY))
    writer.add_tokenizer_model("bert")
    writer.add_token_list(ENCODER_VOCABULARY)
    writer.add_token_types([gguf.TokenType.CONTROL] * 5 + [gguf.TokenType.NORMAL] * (len(ENCODER_VOCABULARY) - 5))
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(CLS)
    writer.add_sep_token_id(SEP)
    writer.add_mask_token_id(4)
    weights = Weights(writer, seed)
    weights.matrix("token_embd.weight", len(ENCODER_VOCABULARY), N_EMBED, 8.0)
    weights.matrix("position_embd.weight", ENCODER_CONTEXT, N_EMBED, 4.0, quantised=False)
    weights.matrix("token_types.weight", 2, N_EMBED, quantised=False)
    weights.norm("token_embd_norm", bias=True)
    for layer in range(layers):
        for name in ("q", "k", "v", "output"):
            weights.matrix(f"blk.{layer}.attn_{name}.weight", N_EMBED, N_EMBED, 2.0)
            weights.values(f"blk.{layer}.attn_{name}.bias", np.zeros(N_EMBED))
        weights.norm(f"blk.{layer}.attn_output_norm", bias=True)
        weights.matrix(f"blk.{layer}.ffn_up.weight", N_FEED_FORWARD, N_EMBED, 2.0)
        weights.values(f"blk.{layer}.ffn_up.bias", np.zeros(N_FEED_FORWARD))
        weights.matrix(f"blk.{layer}.ffn_down.weight", N_EMBED, N_FEED_FORWARD, 2.0)
        weights.values(f"blk.{layer}.ffn_down.bias", np.zeros(N_EMBED))
        weights.norm(f"blk.{layer}.layer_output_norm", bias=True)
    finish(writer)
    return path
