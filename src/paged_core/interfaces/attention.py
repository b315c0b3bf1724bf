"""Slot ``attention``: attention over a paged cache whose layout the backend chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paged_core.interfaces.layer import LayerSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """One step's batch, flattened: T tokens of S sequences one after another, without padding.

    Every sequence has at least one token; its last token in the batch is its last of ``seq_lens``.
    Tensors are on the device of the layers. Fields named ``_host`` hold the same numbers in the
    memory of the host: ``plan`` reads these, since reading a tensor would wait for the device.
    """

    query_start: Tensor
    """[S + 1] int32: sequence s owns the tokens ``query_start[s] .. query_start[s + 1]``."""
    seq_lens: Tensor
    """[S] int32: tokens of each sequence after this step, cached ones included."""
    block_tables: Tensor
    """[S, W] int32: block ids; entries past a sequence's last block are any valid ids."""
    slot_mapping: Tensor
    """[T] int64: ``block * block_size + offset`` where each token's key and value are written."""
    query_start_host: NDArray[np.int32]
    seq_lens_host: NDArray[np.int32]
    block_tables_host: NDArray[np.int32]
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
    """Computation of attention; a whole batch is written before any of it is read."""

    @abstractmethod
    def check(self, layer: LayerSpec, /) -> str | None:
        """Say why this backend cannot serve ``layer`` here, or return ``None``."""

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """Shape of one layer's cache, a tensor of the layer's dtype, or of bytes if its
        ``kv_cache_dtype`` is not ``auto``; see also :class:`SupportsCacheLayout`."""
        return (num_blocks, 2, layer.num_kv_heads, layer.block_size, layer.head_dim)

    def block_dim(self) -> int:
        """Which dimension of :meth:`cache_shape` counts blocks, so that they can be copied."""
        return 0

    @abstractmethod
    def plan(self, batch: AttentionBatch, /) -> Any:
        """Prepare what the layers of a step share, once per step; must not wait for the device."""

    @abstractmethod
    def bind(self, layer: LayerSpec, cache: Any, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``, a tensor of :meth:`cache_shape`, or
        what :meth:`SupportsCacheLayout.allocate_cache` returned."""


@runtime_checkable
class SupportsGraphCapture(Protocol):
    """A backend whose kernels for decoding can be captured in a CUDA graph, once for each size of
    a batch, and replayed with other numbers."""

    def plan_capture(self, batch: AttentionBatch, /) -> Any:
        """Plan a batch of one token each whose tensors stay where they are and get other numbers
        before each replay; what is launched may depend on their shapes and on ``max_seq_len``, the
        greatest that any replay has, and on nothing else.

        A row without a sequence has a slot of -1 and a length of 0: it writes nothing, and what it
        returns is not looked at.
        """

    def update_capture(self, plan: Any, batch: AttentionBatch, /) -> None:
        """Prepare ``plan`` for a replay with the numbers of ``batch``, before it is launched; must
        not wait for the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPreparation:
    """Preparation of queries and keys for attention: an RMSNorm of each head, then the rotary
    embedding, which turns numbers ``i`` and ``i + head_dim / 2`` of a head."""

    query_norm: Tensor | None
    """[head_dim]: weight of the norm; ``None``: there is none."""
    key_norm: Tensor | None
    eps: float
    offset: float
    """Added to both weights."""
    cos: Tensor | None
    """[T, head_dim / 2] float32, contiguous; ``None``: heads are not rotated."""
    sin: Tensor | None


@runtime_checkable
class SupportsHeadPreparation(Protocol):
    """A bound layer that prepares heads itself, in the kernel that writes keys and values; others
    are called with prepared heads."""

    def prepare_and_forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: Any,
        preparation: HeadPreparation,
        /,
    ) -> Tensor:
        """:meth:`LayerAttention.forward` of heads that are not prepared; query and key may be
        overwritten."""


@runtime_checkable
class SupportsBlockCopies(Protocol):
    """A backend with a kernel for copy-on-write; without it, executors copy with PyTorch."""

    def copy_blocks_of_layers(
        self, caches: Tensor, origins: Sequence[int], destinations: Sequence[int], /
    ) -> None:
        """Copy blocks within the caches of like layers [layers, *cache_shape], which the first
        dimension of ``cache_shape`` counts. All are read before any is written; must not wait for
        the device."""


@runtime_checkable
class SupportsCacheLayout(Protocol):
    """A backend that owns the layout of its cache, and so allocates it and copies its blocks."""

    def block_bytes(self, layer: LayerSpec, /) -> int:
        """Bytes that one block of ``layer`` takes."""

    def allocate_cache(self, layer: LayerSpec, num_blocks: int, device: str, /) -> Any:
        """Return a cache of ``layer`` on its own device, or on ``cpu`` for blocks swapped out."""

    def copy_blocks(
        self, source: Any, origins: Sequence[int], target: Any, destinations: Sequence[int], /
    ) -> None:
        """Copy blocks of a cache to another one of the layer or to itself; all are read first."""
