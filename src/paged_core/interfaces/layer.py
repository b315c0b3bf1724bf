"""One attention layer of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Weights that every token is multiplied by, and the attention layers."""

    layer_weights: int
    """Weights of the linear layers; embeddings are looked up and do not count."""
    head_weights: int
    """Weights of the head."""
    layers: tuple[LayerSpec, ...]
    bytes_per_weight: float | None = None
    """As weights are read in a step; ``None``: they have the dtype of the layers."""
    quantized_products: str | None = None
    """Arithmetic of products with quantised weights; ``None``: none is quantised, or in floats."""
    graphs: str | None = None
    """Batches whose decode steps are captured graphs, or why none is; ``None``: its device has no
    graphs."""

    @property
    def weight_bytes(self) -> int:
        """Bytes that all these weights take."""
        width = self.bytes_per_weight or _WIDTH[self.layers[0].dtype]
        return round((self.layer_weights + self.head_weights) * width)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take in all layers."""
        return sum(layer.bytes_per_token for layer in self.layers)

    @property
    def attention_operations(self) -> int:
        """Floating-point operations for one query to attend to one token, in all layers."""
        return sum(4 * layer.num_heads * layer.head_dim for layer in self.layers)


KVCacheDtype = Literal["auto", "fp8_e4m3", "int8"]
"""``fp8_e4m3``: 8-bit floating-point numbers (OCP E4M3, no infinities), scaled by a power of two
for each token and head; ``int8``: whole numbers of 8 bits, with a scale in bfloat16 for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One attention layer of a model, as its runner describes it."""

    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key/value heads, each shared by ``num_heads // num_kv_heads`` query heads."""
    head_dim: int
    scale: float
    """Multiplies query times key before the softmax."""
    dtype: str
    """Dtype of queries, keys and values in torch: ``float32``, ``bfloat16``, ``float16``."""
    device: str
    """As torch names it: ``cpu``, ``cuda:0``."""
    block_size: int
    sliding_window: int | None = None
    """A token sees itself and the ``sliding_window - 1`` tokens before it; ``None``: all."""
    soft_cap: float | None = None
    """Scores become ``soft_cap * tanh(score / soft_cap)`` before the softmax."""
    alibi_slopes: tuple[float, ...] | None = None
    """One slope per query head: adds ``slope * (key position - query position)`` to its scores."""
    sinks: tuple[float, ...] | None = None
    """One score per query head that joins its softmax, with no value: weights add up to less."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """Format in which keys and values are stored; ``auto``: in :attr:`dtype`."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token's key and value take in this layer."""
        if self.kv_cache_dtype != "auto":
            scale_bytes = {"fp8_e4m3": 1, "int8": 2}[self.kv_cache_dtype]
            return 2 * self.num_kv_heads * (self.head_dim + scale_bytes)
        width = {"float32": 4, "bfloat16": 2, "float16": 2}[self.dtype]
        return 2 * self.num_kv_heads * self.head_dim * width
