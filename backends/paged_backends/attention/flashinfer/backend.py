"""Component ``flashinfer``: attention over the paged cache by the package FlashInfer, as read in
version 0.7.2.

A cache is ``[blocks, 2, kv_heads, block_size, head_dim]``, which FlashInfer calls HND. Layers that
differ in nothing that FlashInfer is told share a plan, which is made when the first of them asks
for it, from arrays of the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paged_backends.attention.block_bounds import BlockBounds
from paged_backends.attention.flashinfer.package import package_problem
from paged_backends.attention.flashinfer.pages import Pages
from paged_backends.attention.flashinfer.wrappers import Lease, Wrappers
from paged_backends.attention.layer_checks import dtype_problem, heads_problem
from paged_backends.attention.settings import FlashInferSettings
from paged_backends.attention.slot_writes import SlotWrites
from paged_backends.kernels.nvidia import capability_problem, compute_capability
from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionParts,
    LayerAttention,
)
from paged_core.interfaces.layer import LayerSpec

_HEAD_DIMS = (64, 128, 256)
_GROUP_FOR_TENSOR_CORES = 4
"""From this many query heads for each key head on, decoding uses tensor cores, which serve groups
of any size; without them only some sizes are served."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What FlashInfer is told of a layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None
    dtype: str

    @classmethod
    def of(cls, layer: LayerSpec) -> Kind:
        """Return the kind of ``layer``."""
        return cls(**{field: getattr(layer, field) for field in cls.__dataclass_fields__})


class Plan:
    """Of one step; FlashInfer plans once for each kind of layer."""

    def __init__(self, wrappers: Wrappers, batch: AttentionBatch) -> None:
        self.writes = SlotWrites(batch.slot_mapping)
        self._wrappers, self._batch = wrappers, batch
        self._bounds = BlockBounds(batch.block_tables_host, batch.seq_lens_host, None)
        self._pages: dict[int, Pages] = {}
        self._leases: dict[Kind, Lease] = {}

    def wrapper(self, kind: Kind, num_blocks: int) -> Any:
        """Return the wrapper that is planned for layers of ``kind``; ValueError if a cache of
        ``num_blocks`` lacks a block of the batch."""
        if kind not in self._leases:
            self._bounds.check(num_blocks, kind.block_size)
            self._leases[kind] = self._plan(kind)
        return self._leases[kind].wrapper

    def _plan(self, kind: Kind) -> Lease:
        size, batch = kind.block_size, self._batch
        if size not in self._pages:
            self._pages[size] = Pages.of(batch, size)
        pages = self._pages[size]
        runs = (pages.page_start, pages.pages, pages.last_page_len)
        shape = (kind.num_heads, kind.num_kv_heads, kind.head_dim, size)
        options = {
            "sm_scale": kind.scale,
            "window_left": -1 if kind.sliding_window is None else kind.sliding_window - 1,
            "logits_soft_cap": kind.soft_cap,
            "q_data_type": kind.dtype,
            "kv_data_type": kind.dtype,
        }
        device = batch.slot_mapping.device
        if batch.max_query_len > 1:
            lease = self._wrappers.take("Prefill", self, device)
            lease.plan(pages.query_start, *runs, *shape, causal=True, **options)
        else:
            group = kind.num_heads // kind.num_kv_heads
            lease = self._wrappers.take(
                "Decode", self, device, use_tensor_cores=group >= _GROUP_FOR_TENSOR_CORES
            )
            lease.plan(*runs, *shape, **options)
        return lease


class PagedLayer:
    """Attention of one layer over its cache."""

    def __init__(self, layer: LayerSpec, cache: Tensor) -> None:
        self._kind, self._cache = Kind.of(layer), cache

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        cache = self._cache
        wrapper = plan.wrapper(self._kind, len(cache))
        plan.writes.write(cache, key, value)
        out: Tensor = wrapper.run(query.to(cache.dtype).contiguous(), cache)
        return out.to(query.dtype)


class FlashInferAttention(AttentionBackend):
    """Component ``flashinfer``.

    Its plans cannot be captured in CUDA graphs: a replay would be planned in memory from which the
    device may still copy the plan of the replay before it.
    """

    def __init__(self, options: FlashInferSettings, parts: AttentionParts) -> None:
        self._deterministic = parts.settings.deterministic
        self._wrappers = Wrappers()

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why ``layer`` cannot be served: GPU, dtype, heads, head_dim, ALiBi, package."""
        capability = compute_capability(layer.device)
        if capability is None:
            return f"it computes on NVIDIA GPUs, and the model is on {layer.device}"
        too_old = capability_problem(capability)
        if too_old is not None:
            return too_old
        if self._deterministic:
            return "its tiles depend on the rest of the batch, which deterministic rules out"
        if layer.alibi_slopes is not None:
            return "it has ALiBi with slopes of its own only"
        if layer.head_dim not in _HEAD_DIMS:
            served = ", ".join(map(str, _HEAD_DIMS))
            return f"it takes head dimensions {served}, not {layer.head_dim}"
        problem = dtype_problem(layer, ("bfloat16", "float16")) or heads_problem(layer)
        return problem or package_problem()

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Return a plan that is made when the first layer of a kind asks for it."""
        return Plan(self._wrappers, batch)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``."""
        return PagedLayer(layer, cache)
