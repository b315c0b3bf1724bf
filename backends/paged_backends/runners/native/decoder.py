"""The decoder: embedding, layers of attention and feed-forward, head.

Shapes: T tokens in the batch, R rows that sample a token, E hidden size (of a table: embedding
size), H query heads, K key/value heads, D head_dim, V vocabulary, P positions.
"""

# ruff: noqa: N802, N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.checkpoint.gguf.tensors import QuantizedTensor
from paged_backends.runners.native.config import AttentionConfig, DecoderConfig, Rope
from paged_backends.runners.native.share import (
    AllReduce,
    DividedVocabulary,
    length,
    scores_and_tokens,
    top_keys,
)

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


# ---------------------------------------------------------------------- parts of a layer

RowOp = Callable[[Tensor], Tensor]
"""Maps rows to rows, each by itself."""


class Linear(Protocol):
    """``rows @ weight.T + bias``, for rows [T, I]."""

    def __call__(self, rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        """Return [T, O]; ``residual_TO``, if given, is added to in place and returned."""


class Norm(Protocol):
    """Norm of rows [T, E]."""

    def __call__(self, rows_TE: Tensor, residual_TE: Tensor | None = None) -> Tensor:
        """Return [T, E]; ``residual_TE``, if given, is added to in place and returned."""


class HeadOp(Protocol):
    """Prepares query and key heads for attention: norms, then the rotary embedding."""

    def __call__(self, query_THD: Tensor, key_TKD: Tensor, rotary: Rotary | None) -> None:
        """Apply it in place; ``rotary`` is ``None`` where the layer has none."""


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of a batch's rotary embedding: of each pair's angle at each position."""

    cos_TF: Tensor
    """float32."""
    sin_TF: Tensor

    @classmethod
    def at(cls, positions_T: Tensor, frequencies_F: Tensor) -> Rotary:
        """Return the rotary embedding of tokens at these positions."""
        angles_TF = positions_T.float()[:, None] * frequencies_F
        return cls(angles_TF.cos(), angles_TF.sin())

    @cached_property
    def rows_T(self) -> Tensor:
        """[T] int64: each token's row of the tables."""
        return torch.arange(len(self.cos_TF), device=self.cos_TF.device)

    def rotate(self, heads_THD: Tensor) -> None:
        """Rotate all heads, in place."""
        first, second = heads_THD.chunk(2, dim=-1)
        cos, sin = self.cos_TF[:, None], self.sin_TF[:, None]
        rotated = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(rotated)


def added(rows: Tensor, residual: Tensor | None) -> Tensor:
    """Return ``rows``, or the residual, if there is one, to which they are added in place."""
    return rows if residual is None else residual.add_(rows)


def soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Return ``cap * tanh(logits / cap)``, computed in place."""
    return logits.div_(cap).tanh_().mul_(cap)


@dataclass(frozen=True, slots=True, eq=False)
class SummedLinear:
    """A linear layer whose inputs are divided among the ranks."""

    product: Linear
    """Product of this rank's inputs, without bias."""
    bias_O: Tensor | None
    all_reduce: AllReduce

    def __call__(self, rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        """Add bias and residual to the sum, once; they are rounded together."""
        sums_TO = self.product(rows_TI)
        self.all_reduce(sums_TO)
        if self.bias_O is None:
            return added(sums_TO, residual_TO)
        biased_TO = sums_TO.float() + self.bias_O.float()
        return added(biased_TO, residual_TO).to(sums_TO.dtype)


# ---------------------------------------------------------------------- embedding


class Table(Protocol):
    """Looks up rows."""

    def __call__(self, tokens_T: Tensor) -> Tensor:
        """Return the rows [T, E] of tokens, in a dtype of the table's own."""


@dataclass(frozen=True, slots=True)
class DenseTable:
    """A table of plain numbers."""

    rows_VE: Tensor

    def __call__(self, tokens_T: Tensor) -> Tensor:
        return functional.embedding(tokens_T, self.rows_VE)

    def to(self, device: torch.device, dtype: torch.dtype) -> DenseTable:
        """Return the same table on another device, in another dtype."""
        return DenseTable(self.rows_VE.to(device, dtype))


@dataclass(frozen=True, slots=True)
class BlockTable:
    """A table in the blocks of a mapped GGUF file: rows are dequantised when they are looked up."""

    blocks: QuantizedTensor
    dtype: torch.dtype

    def __call__(self, tokens_T: Tensor) -> Tensor:
        return self.blocks.rows(tokens_T).dequantize(self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class SummedTable:
    """A table whose rows are divided among the ranks."""

    table: Table
    tokens: slice
    """Whose rows it holds."""
    dtype: torch.dtype
    all_reduce: AllReduce

    def __call__(self, tokens_T: Tensor) -> Tensor:
        """Return the rows [T, E] in ``dtype``: one rank has them, and the others add zeros."""
        places_T = tokens_T - self.tokens.start
        elsewhere_T = (places_T < 0) | (places_T >= length(self.tokens))
        rows_TE = self.table(places_T.masked_fill(elsewhere_T, 0)).to(self.dtype)
        rows_TE = rows_TE.masked_fill(elsewhere_T[:, None], 0)
        self.all_reduce(rows_TE)
        return rows_TE


# ---------------------------------------------------------------------- the model

Rotaries = Mapping[Rope | None, Rotary | None]
"""The rotary embedding of a batch for every kind that the layers have; of ``None``: ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """From token ids to the input of the first layer."""

    table: Table
    dtype: torch.dtype
    scale: float
    """Multiplies the embedding; rounded to ``dtype``."""
    positions_PE: Tensor | None
    """Learned position embeddings."""
    first_position: int
    project: Linear | None

    def __call__(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        hidden_TE = self.table(tokens_T).to(self.dtype)
        if self.scale != 1:
            hidden_TE *= self.scale
        if self.project is not None:
            hidden_TE = self.project(hidden_TE)
        if self.positions_PE is not None:
            rows_T = positions_T + self.first_position
            hidden_TE = hidden_TE + functional.embedding(rows_T, self.positions_PE)
        return hidden_TE


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Projections around the attention of one layer."""

    index: int
    config: AttentionConfig
    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_key_value: Linear
    heads: HeadOp
    output: Linear

    def project(self, rows_TE: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, ready for attention."""
        query_THD, key_TKD, value_TKD = self.split(rows_TE)
        self.heads(query_THD, key_TKD, rotary)
        return query_THD, key_TKD, value_TKD

    def split(self, rows_TE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, whose heads are not prepared for attention."""
        counts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        fused_TXD = self.query_key_value(rows_TE).view(-1, sum(counts), self.head_dim)
        query_THD, key_TKD, value_TKD = fused_TXD.split_with_sizes(counts, dim=1)
        return query_THD, key_TKD, value_TKD


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two linear layers with an activation between them."""

    up: Linear
    """Gate and up side by side, if it is gated."""
    activation: RowOp
    down: Linear

    def __call__(self, rows_TE: Tensor, residual_TE: Tensor | None) -> Tensor:
        return self.down(self.activation(self.up(rows_TE)), residual_TE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Attention, then feed-forward, each added to the hidden states."""

    attention_norm: Norm
    attention: Attention
    attention_output_norm: Norm | None
    mlp_norm: Norm
    mlp: FeedForward
    mlp_output_norm: Norm | None
    norm_first: bool

    def __call__(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> Tensor:
        """Return the input of the next layer; ``hidden_TE`` is overwritten."""
        attention = self.attention
        query, key, value = self.begin(hidden_TE, rotaries[attention.config.rope])
        return self.finish(attend(attention.index, query, key, value), hidden_TE)

    def begin(self, hidden_TE: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of the layer's attention."""
        return self.attention.project(self.attended_rows(hidden_TE), rotary)

    def attended_rows(self, hidden_TE: Tensor) -> Tensor:
        """Return what is projected to query, key and value."""
        return self.attention_norm(hidden_TE) if self.norm_first else hidden_TE

    def finish(self, attended_THD: Tensor, hidden_TE: Tensor) -> Tensor:
        """Return the input of the next layer; ``hidden_TE`` is overwritten."""
        attended_TO, output = attended_THD.flatten(1), self.attention.output
        if not self.norm_first:
            hidden_TE = self.attention_norm(output(attended_TO, hidden_TE))
            return self.mlp_norm(self.mlp(hidden_TE, hidden_TE))
        if self.attention_output_norm is None:
            hidden_TE = output(attended_TO, hidden_TE)
        else:
            hidden_TE = self.attention_output_norm(output(attended_TO), hidden_TE)
        normed_TE = self.mlp_norm(hidden_TE)
        if self.mlp_output_norm is None:
            return self.mlp(normed_TE, hidden_TE)
        return self.mlp_output_norm(self.mlp(normed_TE, None), hidden_TE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """From the output of the last layer to the scores of all tokens."""

    norm: Norm | None
    project: Linear | None
    output: Linear

    def __call__(self, hidden_RE: Tensor) -> Tensor:
        """Return scores [R, V]."""
        if self.norm is not None:
            hidden_RE = self.norm(hidden_RE)
        if self.project is not None:
            hidden_RE = self.project(hidden_RE)
        return self.output(hidden_RE)


class RunsLayer(Protocol):
    """Computes one layer: itself, or in another way."""

    def __call__(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> Tensor:
        """Return the input of the next layer; ``hidden_TE`` is overwritten."""


@runtime_checkable
class RunsLayers(Protocol):
    """Operations that compute a layer otherwise than one after the other."""

    def run(self, layer: Layer, /) -> RunsLayer:
        """Return what computes a layer of these operations."""


class FusedStack(Protocol):
    """Computes all layers in one call."""

    def run(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> bool:
        """Turn the input of the first layer into the output of the last, in place.

        Returns:
            False where it cannot with this ``attend``; then nothing is changed.
        """


@dataclass(slots=True, kw_only=True)
class Decoder:
    """A whole model. It keeps no state between calls."""

    config: DecoderConfig
    embedding: Embedding
    layers: Sequence[Layer]
    head: Head
    pick_best: Callable[[Tensor], tuple[Tensor, Tensor]]
    make_rotary: Callable[[Tensor, Tensor], Rotary]
    frequencies: Mapping[Rope, Tensor]
    """Frequency of each pair, by kind of rotary embedding that the layers have."""
    run: Sequence[RunsLayer] = ()
    """Callables that compute the layers; in the beginning the layers themselves."""
    fused: FusedStack | None = None
    """Used instead of the layers, where it can be."""
    vocabulary: DividedVocabulary | None = None
    """``None``: the head scores all tokens."""

    def __post_init__(self) -> None:
        self.run = self.layers

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Return the output of the last layer, [T, E]."""
        rotaries: dict[Rope | None, Rotary | None] = {None: None}
        for rope, frequencies_F in self.frequencies.items():
            rotaries[rope] = self.make_rotary(positions_T, frequencies_F)
        hidden_TE = self.embedding(tokens_T, positions_T)
        if self.fused is not None and self.fused.run(hidden_TE, rotaries, attend):
            return hidden_TE
        for run in self.run:
            hidden_TE = run(hidden_TE, rotaries, attend)
        return hidden_TE

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Return logits [R, V] of rows of :meth:`forward`, as the head computes them; in float32 if
        they are capped, which would round them again."""
        logits_RV, cap = self.head(hidden_RE), self.config.logits_soft_cap
        if self.vocabulary is not None:
            logits_RV = self.vocabulary.logits(logits_RV)
        return logits_RV if cap is None else soft_cap(logits_RV.float(), cap)

    def best(self, hidden_RE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best token [R] of each row, and its logit [R]."""
        best_R, logits_R = self.pick_best(self.head(hidden_RE))  # a soft cap keeps their order
        if self.vocabulary is not None:
            best_R, logits_R = self.vocabulary.best(best_R, logits_R)
        cap = self.config.logits_soft_cap
        return best_R, logits_R if cap is None else soft_cap(logits_R.float(), cap)

    def top(self, hidden_RE: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the ``k`` highest logits of each row in float32, and their tokens."""
        logits_RV, cap = self.head(hidden_RE), self.config.logits_soft_cap
        if self.vocabulary is None:
            keys_RK = top_keys(logits_RV, k)
        else:
            keys_RK = self.vocabulary.top_keys(logits_RV, k)
        logits_RK, tokens_RK = scores_and_tokens(keys_RK)
        return logits_RK if cap is None else soft_cap(logits_RK, cap), tokens_RK
