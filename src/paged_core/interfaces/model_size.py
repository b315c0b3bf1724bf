"""The size of a model, as far as it determines the cost of a token."""

from __future__ import annotations

from dataclasses import dataclass

from paged_core.interfaces.layer import LayerSpec

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
