"""What a decoder is made of: plain values that tell one family of models from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding over the whole of a head: pairs ``(i, i + head_dim / 2)`` turn."""

    theta: float
    scaling: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 0
    """Positions that the model was first trained on; of ``llama3`` only."""


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
    """Norms stand before attention and feed-forward; otherwise after the residual sum."""
    norm_outputs: bool = False
    """What attention and feed-forward return is normed too, before it is added."""
    norm_at_end: bool = True
    norm_queries_and_keys: bool = False
    gated: bool = True
    """Feed-forward is ``down(act(gate(x)) * up(x))``, otherwise ``down(act(up(x)))``."""
    query_bias: bool = False
    """Of query, key and value."""
    output_bias: bool = False
    """Of the projection behind attention."""
    mlp_bias: bool = False
    embedding_size: int
    """Width of the embedding; where it is not ``hidden_size``, projections lie between them."""
    embedding_scale: float = 1.0
    learned_positions: int | None = None
    """Rows of the table of position embeddings that come before the first position's."""
    tied: bool
    """The head is the embedding, unless the checkpoint holds another."""
    logits_soft_cap: float | None = None
    eos_token_ids: frozenset[int] = frozenset()
