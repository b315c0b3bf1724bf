"""Slot ``attention``: attention over a paged cache whose layout the backend chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paged_core.interfaces.layer import LayerSpec

if TYPE_CHECKING:
    from torch import Tensor

    from paged_core.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """What the factory of a backend gets beside its options."""

    settings: EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """One step's batch, flattened: T tokens of S sequences one after another, no padding between.

    All tensors lie on the device of the layers. Every sequence has at least one token here; the
    last of its ``seq_lens`` tokens is the last of its tokens in the batch.
    """

    query_start: Tensor
    """[S + 1] int32: sequence s owns the tokens ``query_start[s] .. query_start[s + 1]``."""
    seq_lens: Tensor
    """[S] int32: tokens of each sequence after this step, cached ones included."""
    block_tables: Tensor
    """[S, W] int32: block ids; entries past a sequence's last block hold anything valid."""
    slot_mapping: Tensor
    """[T] int64: ``block * block_size + offset`` where each token's key and value are written."""
    max_query_len: int
    max_seq_len: int


class LayerAttention(Protocol):
    """Attention of one layer, bound to its part of the cache."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Any, /) -> Tensor:
        """Write ``key`` and ``value`` of the whole batch into the cache, then attend.

        Shapes: query [T, num_heads, head_dim], key and value [T, num_kv_heads, head_dim]; returns
        [T, num_heads, head_dim]. Causal: a token sees the tokens of its sequence up to itself.
        """


class AttentionBackend(ABC):
    """How attention is computed; a whole batch is written before any of it is read."""

    @abstractmethod
    def check(self, layer: LayerSpec, /) -> str | None:
        """Say why this backend cannot serve ``layer`` here, or return ``None``."""

    @abstractmethod
    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """Shape of one layer's cache. Its first dimension, or its second after a leading 2, counts
        blocks: see :meth:`block_dim`."""

    def block_dim(self) -> int:
        """Which dimension of :meth:`cache_shape` counts blocks, so that they can be copied."""
        return 0

    @abstractmethod
    def plan(self, batch: AttentionBatch, /) -> Any:
        """Prepare what all layers of one step share; called once per step."""

    @abstractmethod
    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``, a tensor of :meth:`cache_shape`."""


@runtime_checkable
class SupportsGraphCapture(Protocol):
    """A backend whose ``forward`` can be captured once and replayed with other inputs."""

    def capture_plan(self, num_sequences: int, max_seq_len: int, /) -> Any:
        """Return a plan whose tensors keep their addresses across replays."""
