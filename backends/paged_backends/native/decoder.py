"""The decoder: embedding, layers of attention and feed-forward, head.

Shapes: T tokens in the batch, R rows that draw a token, E hidden size, N query and key heads,
K key/value heads, D head_dim, V vocabulary.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.native.config import AttentionConfig, DecoderConfig, Rope
from paged_backends.native.parts import Map, soft_cap
from paged_backends.native.rope import Turns, frequencies

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """From token ids to what the first layer takes."""

    table_VE: Tensor
    scale: float
    """Multiplies it; as exact as the format that is computed in."""
    positions_PE: Tensor | None
    """A row per position, where positions are learned."""
    first_position: int
    project: Map | None

    def __call__(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        hidden_TE = functional.embedding(tokens_T, self.table_VE)
        if self.scale != 1:
            hidden_TE *= self.scale
        if self.project is not None:
            hidden_TE = self.project(hidden_TE)
        if self.positions_PE is not None:
            places_T = positions_T + self.first_position
            hidden_TE = hidden_TE + functional.embedding(places_T, self.positions_PE)
        return hidden_TE


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Projections around the attention of one layer."""

    config: AttentionConfig
    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_key_value: Map
    norm_queries_and_keys: Map | None
    """Of heads [T, N, D]."""
    output: Map

    def __call__(
        self, index: int, hidden_TE: Tensor, turns: dict[Rope, Turns], attend: Attend
    ) -> Tensor:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        fused = self.query_key_value(hidden_TE).view(len(hidden_TE), -1, self.head_dim)
        turned_TND, value_TKD = fused[:, : heads + kv_heads], fused[:, heads + kv_heads :]
        if self.norm_queries_and_keys is not None:
            turned_TND = self.norm_queries_and_keys(turned_TND)
        if self.config.rope is not None:
            turns[self.config.rope].turn(turned_TND)
        attended = attend(index, turned_TND[:, :heads], turned_TND[:, heads:], value_TKD)
        return self.output(attended.flatten(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two products with an activation between them."""

    up: Map
    """Of gates and values side by side, where they are gated."""
    activation: Map
    down: Map

    def __call__(self, hidden_TE: Tensor) -> Tensor:
        return self.down(self.activation(self.up(hidden_TE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Attention, then feed-forward, each added to what came in."""

    attention_norm: Map
    attention: Attention
    attention_output_norm: Map | None
    mlp_norm: Map
    mlp: FeedForward
    mlp_output_norm: Map | None
    norm_first: bool

    def __call__(
        self, index: int, hidden_TE: Tensor, turns: dict[Rope, Turns], attend: Attend
    ) -> Tensor:
        if not self.norm_first:
            hidden_TE = self.attention_norm(
                hidden_TE + self.attention(index, hidden_TE, turns, attend)
            )
            return self.mlp_norm(hidden_TE + self.mlp(hidden_TE))
        added_TE = self.attention(index, self.attention_norm(hidden_TE), turns, attend)
        if self.attention_output_norm is not None:
            added_TE = self.attention_output_norm(added_TE)
        hidden_TE = hidden_TE + added_TE
        added_TE = self.mlp(self.mlp_norm(hidden_TE))
        if self.mlp_output_norm is not None:
            added_TE = self.mlp_output_norm(added_TE)
        return hidden_TE + added_TE


class Decoder:
    """A whole model. It keeps nothing between calls."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        embedding: Embedding,
        layers: list[Layer],
        final_norm: Map | None,
        project: Map | None,
        head: Map,
        device: torch.device,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm
        self._project = project
        self._head = head
        ropes = {layer.rope for layer in config.layers if layer.rope is not None}
        self._frequencies = {rope: frequencies(rope, config.head_dim).to(device) for rope in ropes}

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Return [T, E], what the last layer returns."""
        turns = {rope: Turns(angles, positions_T) for rope, angles in self._frequencies.items()}
        hidden_TE = self._embedding(tokens_T, positions_T)
        for index, layer in enumerate(self._layers):
            hidden_TE = layer(index, hidden_TE, turns, attend)
        return hidden_TE

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Return [R, V] float32 of rows that :meth:`forward` returned."""
        if self._final_norm is not None:
            hidden_RE = self._final_norm(hidden_RE)
        if self._project is not None:
            hidden_RE = self._project(hidden_RE)
        logits_RV = self._head(hidden_RE).float()
        if self.config.logits_soft_cap is not None:
            logits_RV = soft_cap(logits_RV, self.config.logits_soft_cap)
        return logits_RV
