"""Component ``flashinfer``: attention over the paged cache by the package FlashInfer, as read in
version 0.7.2.

A cache is ``[blocks, 2, kv_heads, block_size, head_dim]``, which FlashInfer calls HND. Layers that
differ in nothing that FlashInfer is told share a plan, which is made when the first of them asks
for it, from arrays of the host: runs of pages. Its wrappers are used again when no plan needs them.
"""

# ruff: noqa: N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.attention.cache import SlotWrites
from paged_backends.attention.layers import (
    NO_SINKS,
    Unavailable,
    dtype_problem,
    function_of,
    heads_problem,
    not_on_nvidia,
)
from paged_backends.attention.settings import FlashInferSettings
from paged_backends.attention.step import BlockBounds
from paged_backends.kernels.cuda.toolkit import candidates
from paged_backends.kernels.nvidia import capability_problem, compute_capability, gpu_problem
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec

_INSTALL = "pip install flashinfer-python"


def wrapper_class(name: str) -> Callable[..., Any]:
    """Return a class of FlashInfer.

    Raises:
        Unavailable: it is not installed, too old, or cannot be imported.
    """
    return function_of(("flashinfer",), name, install=_INSTALL)


def package_problem() -> str | None:
    """Return why FlashInfer cannot be used, apart from the GPU, or ``None``."""
    try:
        wrapper_class("BatchPrefillWithPagedKVCacheWrapper")
        wrapper_class("BatchDecodeWithPagedKVCacheWrapper")
    except Unavailable as error:
        return str(error)
    return _compiler_problem()


def unavailable_reason() -> str | None:
    """Return why it cannot be used here, or ``None``; without a GPU it is not imported."""
    return gpu_problem() or package_problem()


def _compiler_problem() -> str | None:
    """Return why its kernels cannot be had: it compiles them on first use, by nvcc."""
    if any(candidates()) or find_spec("flashinfer_jit_cache") is not None:
        return None
    return (
        "it compiles its kernels on first use, and there is no nvcc; install the CUDA toolkit and "
        "set CUDA_HOME, or install flashinfer-jit-cache, which has them compiled"
    )


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of S sequences, as host tensors of int32 that are pinned for a GPU: FlashInfer
    reads them on the host, and copies them without waiting."""

    query_start: Tensor
    """[S + 1]: running sums of the numbers of queries."""
    page_start: Tensor
    """[S + 1]: running sums of the numbers of pages."""
    pages: Tensor
    """Block ids of the first sequence, then of the second, and so on."""
    last_page_len: Tensor
    """[S]: tokens in the last page of each sequence, 1 at least."""

    @classmethod
    def of(cls, batch: AttentionBatch, block_size: int) -> Pages:
        """Return the pages of ``batch``."""
        lengths_S, tables_SW = batch.seq_lens_host, batch.block_tables_host
        counts_S = -(-lengths_S // block_size)
        is_used_SW = np.arange(tables_SW.shape[1]) < counts_S[:, None]
        device = batch.seq_lens.device
        return cls(
            query_start=_host_tensor(batch.query_start_host, device),
            page_start=_host_tensor(np.cumsum([0, *counts_S]), device),
            pages=_host_tensor(tables_SW[is_used_SW], device),
            last_page_len=_host_tensor(lengths_S - (counts_S - 1) * block_size, device),
        )


def _host_tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array.astype(np.int32))
    return tensor.pin_memory() if device.type == "cuda" else tensor


_WORKSPACE_BYTES = 384 << 20
"""For partial results of split sequences; FlashInfer recommends 128 MiB at least, and raises an
error where large batches of long sequences need more."""


@dataclass(slots=True)
class Lease:
    """A wrapper, and the plan that uses it."""

    wrapper: Any
    holder: ref[Any]
    copied: Any = None
    """The event when the device has what was planned; ``None``: at once, since it is no GPU."""

    def is_over(self) -> bool:
        """Return True if the wrapper may be planned again."""
        return self.holder() is None and (self.copied is None or self.copied.query())

    def plan(self, *args: Any, **options: Any) -> None:
        """Plan the wrapper."""
        self.wrapper.plan(*args, **options)
        if self.wrapper.device.type == "cuda":
            self.copied = torch.cuda.current_stream(self.wrapper.device).record_event()


class Wrappers:
    """All wrappers of a backend, which share one workspace, since one stream runs them in turn.

    A wrapper plans in pinned memory that is copied to the device later, so it is planned again only
    when that copy is made; with steps planned ahead, two or three wrappers of a kind are in use.
    """

    def __init__(self) -> None:
        self._workspaces: dict[torch.device, Tensor] = {}
        self._leases: dict[object, list[Lease]] = {}

    def take(self, kind: str, holder: object, device: torch.device, **options: Any) -> Lease:
        """Return a wrapper to be planned for ``holder``, which has it while it lives.

        Args:
            kind: ``Prefill`` or ``Decode``.
            options: of its constructor.
        """
        leases = self._leases.setdefault((kind, device, *sorted(options.items())), [])
        lease = next((lease for lease in leases if lease.is_over()), None)
        if lease is None:
            make = wrapper_class(f"Batch{kind}WithPagedKVCacheWrapper")
            lease = Lease(make(self._workspace(device), "HND", **options), ref(holder))
            leases.append(lease)
        lease.holder = ref(holder)
        return lease

    def _workspace(self, device: torch.device) -> Tensor:
        if device not in self._workspaces:
            count = _WORKSPACE_BYTES if device.type == "cuda" else 16
            self._workspaces[device] = torch.zeros(count, dtype=torch.uint8, device=device)
        return self._workspaces[device]


_HEAD_DIMS = (64, 128, 256)
_GROUP_FOR_TENSOR_CORES = 4
"""From this many query heads for each key head on, decoding uses tensor cores, which serve groups
of any size; without them only some sizes are served."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties of a layer that FlashInfer is told."""

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
    """Plan of one step; FlashInfer plans once for each kind of layer."""

    def __init__(self, wrappers: Wrappers, batch: AttentionBatch) -> None:
        self.writes = SlotWrites(batch.slot_mapping)
        self._wrappers, self._batch = wrappers, batch
        self._bounds = BlockBounds.of(batch)
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

    def __init__(self, options: FlashInferSettings, context: AttentionContext) -> None:
        self._deterministic = context.settings.deterministic
        self._wrappers = Wrappers()

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why ``layer`` cannot be served: GPU, dtype, heads, ALiBi, sinks, package."""
        capability = compute_capability(layer.device)
        if capability is None:
            return not_on_nvidia(layer)
        too_old = capability_problem(capability)
        if too_old is not None:
            return too_old
        if self._deterministic:
            return "its tiles depend on the rest of the batch, which deterministic rules out"
        if layer.alibi_slopes is not None:
            return "it has ALiBi with slopes of its own only"
        if layer.sinks is not None:
            return NO_SINKS
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
