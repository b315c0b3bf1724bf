"""The decoder: embedding, layers of attention and feed-forward, head.

Shapes: T tokens in the batch, R rows that draw a token, E hidden size, N query and key heads,
K key/value heads, D head_dim, V vocabulary.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.runners.native.config import AttentionConfig, DecoderConfig, Rope
from paged_backends.runners.native.parts import Heads, Map, Product, soft_cap
from paged_backends.runners.native.rope import Turns, frequencies

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """From token ids to what the first layer takes."""

    table_VE: Tensor
    """As it is stored, or as the decoder computes."""
    dtype: torch.dtype
    scale: float
    """Multiplies it; as exact as the format that is computed in."""
    positions_PE: Tensor | None
    """A row per position, where positions are learned."""
    first_position: int
    project: Product | None

    def __call__(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        hidden_TE = functional.embedding(tokens_T, self.table_VE).to(self.dtype)
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

    index: int
    config: AttentionConfig
    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_key_value: Product
    heads: Heads
    output: Product

    def __call__(
        self,
        rows_TE: Tensor,
        turns: dict[Rope | None, Turns | None],
        attend: Attend,
        residual_TE: Tensor | None,
    ) -> Tensor:
        split = self.num_heads + self.num_kv_heads
        fused = self.query_key_value(rows_TE).view(len(rows_TE), -1, self.head_dim)
        query_TND, key_TKD = fused[:, : self.num_heads], fused[:, self.num_heads : split]
        self.heads(query_TND, key_TKD, turns[self.config.rope])
        attended_TND = attend(self.index, query_TND, key_TKD, fused[:, split:])
        return self.output(attended_TND.flatten(1), residual_TE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two products with an activation between them."""

    up: Product
    """Of gates and values side by side, where they are gated."""
    activation: Map
    down: Product

    def __call__(self, rows_TE: Tensor, residual_TE: Tensor | None) -> Tensor:
        return self.down(self.activation(self.up(rows_TE)), residual_TE)


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
        self, hidden_TE: Tensor, turns: dict[Rope | None, Turns | None], attend: Attend
    ) -> Tensor:
        """Return what the next layer takes; ``hidden_TE`` is changed."""
        if not self.norm_first:
            hidden_TE = self.attention(hidden_TE, turns, attend, hidden_TE)
            hidden_TE = self.attention_norm(hidden_TE)
            return self.mlp_norm(self.mlp(hidden_TE, hidden_TE))
        normed_TE = self.attention_norm(hidden_TE)
        if self.attention_output_norm is None:
            self.attention(normed_TE, turns, attend, hidden_TE)
        else:
            added_TE = self.attention(normed_TE, turns, attend, None)
            hidden_TE += self.attention_output_norm(added_TE)
        normed_TE = self.mlp_norm(hidden_TE)
        if self.mlp_output_norm is None:
            return self.mlp(normed_TE, hidden_TE)
        hidden_TE += self.mlp_output_norm(self.mlp(normed_TE, None))
        return hidden_TE


class AllLayers(Protocol):
    """Runs all layers as one, where it can."""

    def serves(self, attend: Attend) -> bool:
        """Whether it can with this attention."""

    def run(self, hidden_TE: Tensor, turns: dict[Rope | None, Turns | None], attend: Any) -> None:
        """Do so, in place."""


class Decoder:
    """A whole model. It keeps nothing between calls."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        embedding: Embedding,
        layers: list[Layer],
        final_norm: Map | None,
        project: Product | None,
        head: Product,
        best: Map,
        device: torch.device,
    ) -> None:
        self.config = config
        self._embedding = embedding
        self.layers = layers
        self._final_norm = final_norm
        self._project = project
        self._head = head
        self._best = best
        self.fused: AllLayers | None = None
        """Takes the place of the layers where it can."""
        ropes = {layer.rope for layer in config.layers if layer.rope is not None}
        self._frequencies = {rope: frequencies(rope, config.head_dim).to(device) for rope in ropes}

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Return [T, E], what the last layer returns."""
        turns: dict[Rope | None, Turns | None] = {None: None}
        for rope, angles in self._frequencies.items():
            turns[rope] = Turns(angles, positions_T)
        hidden_TE = self._embedding(tokens_T, positions_T)
        if self.fused is not None and self.fused.serves(attend):
            self.fused.run(hidden_TE, turns, attend)
            return hidden_TE
        for layer in self.layers:
            hidden_TE = layer(hidden_TE, turns, attend)
        return hidden_TE

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Return [R, V] float32 of rows that :meth:`forward` returned."""
        logits_RV = self._scores(hidden_RE).float()
        if self.config.logits_soft_cap is not None:
            logits_RV = soft_cap(logits_RV, self.config.logits_soft_cap)
        return logits_RV

    def best(self, hidden_RE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best token [R] of each row, and its logit [R] but for a soft cap."""
        scores_RV = self._scores(hidden_RE)  # a cap bends them, and keeps their order
        best_R = self._best(scores_RV)
        return best_R, scores_RV.gather(1, best_R[:, None])[:, 0]

    def _scores(self, hidden_RE: Tensor) -> Tensor:
        if self._final_norm is not None:
            hidden_RE = self._final_norm(hidden_RE)
        if self._project is not None:
            hidden_RE = self._project(hidden_RE)
        return self._head(hidden_RE)
