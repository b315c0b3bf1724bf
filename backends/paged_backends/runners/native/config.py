"""The architecture of a decoder: plain values that tell one model family from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding of whole heads, in pairs ``(i, i + head_dim / 2)``."""

    theta: float
    scaling: Literal["default", "linear", "llama3", "divided"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 0
    """Positions of the original training, before scaling; ``llama3`` only."""
    divisors: tuple[float, ...] = ()
    """Divisors of the frequencies, one for each pair; ``divided`` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Attention of one layer."""

    scale: float
    rope: Rope | None = None
    sliding_window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A stack of attention and feed-forward layers between an embedding and a head."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[AttentionConfig, ...]
    max_model_len: int
    activation: Activation
    norm: Literal["rms", "layer"]
    norm_eps: float
    norm_weight_offset: float = 0.0
    """Added to the stored weight of every norm."""
    norm_has_weights: bool = True
    norm_first: bool = True
    """Norms come before attention and feed-forward; otherwise after the residual sum."""
    norm_outputs: bool = False
    """The outputs of attention and feed-forward are normalised too, before they are added."""
    norm_at_end: bool = True
    norm_queries_and_keys: bool = False
    gated: bool = True
    """Feed-forward is ``down(act(gate(x)) * up(x))``, otherwise ``down(act(up(x)))``."""
    query_bias: bool = False
    """Query, key and value have biases."""
    output_bias: bool = False
    """The output projection of attention has a bias."""
    mlp_bias: bool = False
    embedding_size: int
    """Width of the embedding; if it is not ``hidden_size``, projections connect them."""
    embedding_scale: float = 1.0
    learned_positions: int | None = None
    """Rows of the position embedding table before that of position 0; ``None``: no such table."""
    tied: bool
    """The head is the embedding, unless the checkpoint holds another."""
    logits_soft_cap: float | None = None
    eos_token_ids: frozenset[int] = frozenset()
