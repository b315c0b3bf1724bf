"""Component ``cpu``: attention over the paged cache by our own kernels, which also write the cache.

A cache is ``[blocks, 2, kv_heads, block_size, head_dim]``: all keys of a block, then its values. A
block is contiguous, and so are the keys of a head within it. With ``kv_cache_dtype: int8`` a row,
the key or value of one token and head, is ``head_dim`` codes of a byte and their scale in bfloat16:
blocks are copied and swapped with their scales.

A sequence that decodes one token is read key by key, all heads of a group at once; chunks of
several tokens are computed in tiles. The common blocks of sequences that share a prompt are read
once for all of them. Otherwise the partition of a sequence depends on its length alone, so that its
result is bit-identical whatever the rest of the batch and the number of threads are. The last bits
may differ between a token computed alone, in a chunk, or along with others that share its prefix;
with ``deterministic: true`` everything is computed in tiles of one sequence, and they do not.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_backends.attention.cache import check_contiguous
from paged_backends.attention.layers import by_head, dtype_problem, heads_problem
from paged_backends.attention.settings import CpuSettings
from paged_backends.attention.step import (
    BlockBounds,
    KernelBatch,
    contiguous_rows,
    point_to_rows,
)
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.bindings import INT32S, AttentionCall, Bindings
from paged_backends.kernels.cpu.compiler import NoSuchInstructions
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec

_TYPES = {"float32": 0, "bfloat16": 1}
_SCALE_BYTES = 2
"""Bytes of the scale of a row in int8, which is in bfloat16."""


Shape = tuple[int, int, int, int, int]
"""Block size, heads, key/value heads, head_dim, and sliding window or 0, of a layer."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work list of the layers of one shape in one step."""

    lists: list[Tensor]
    """Items, joins, shares, members, and memory for partial results, reused layer by layer."""
    addresses: tuple[int, ...]
    """Addresses of ``starts``, ``lengths``, ``tables`` and ``slots``, and of the lists."""
    counts: tuple[int, ...]
    """The width of the tables; the numbers of tokens, items and joins."""


class Plan(KernelBatch):
    """Plan of one step; the work is listed once for each shape of layers."""

    def __init__(
        self, bindings: Bindings, batch: AttentionBatch, tiles_from: int, num_threads: int
    ) -> None:
        super().__init__(batch)
        self._bindings = bindings
        self._tiles_from = tiles_from
        self.num_threads = num_threads
        self.bounds = BlockBounds(self.tables.numpy(), self.lengths.numpy(), self.slots.numpy())
        """To be checked before a kernel gets the addresses."""
        self._work: dict[Shape, Work] = {}

    def work(self, shape: Shape) -> Work:
        """Return the work of the layers of this shape."""
        work = self._work.get(shape)
        if work is None:
            work = self._work[shape] = self._list_work(*shape)
        return work

    def _list_work(self, block_size: int, *shape: int) -> Work:
        sizes = (ctypes.c_int64 * 5)()

        def plan(*lists: int | None) -> None:
            self._bindings.plan(
                self.starts.data_ptr(),
                self.lengths.data_ptr(),
                self.tables.data_ptr(),
                *self.tables.shape,
                block_size,
                *shape,
                self._tiles_from,
                self.num_threads,
                *lists,
                ctypes.addressof(sizes),
            )

        plan(None, None, None, None)
        *counts, num_floats = sizes
        lists = [
            torch.empty(count * numbers, dtype=torch.int32)
            for count, numbers in zip(counts, INT32S, strict=True)
        ]
        plan(*(made.data_ptr() for made in lists))
        lists.append(torch.empty(num_floats))
        held = (self.starts, self.lengths, self.tables, self.slots, *lists)
        return Work(
            lists,
            addresses=tuple(tensor.data_ptr() for tensor in held),
            counts=(self.tables.shape[1], self.slots.shape[0], *counts[:2]),
        )


class PagedLayer:
    """Attention of one layer over its cache."""

    def __init__(self, bindings: Bindings, layer: LayerSpec, cache: Tensor) -> None:
        self._attend = bindings.attend
        self._cache = cache
        self._dtype: torch.dtype = getattr(torch, layer.dtype)
        self._shape = (
            *(layer.block_size, layer.num_heads, layer.num_kv_heads, layer.head_dim),
            layer.sliding_window or 0,
        )
        self._slopes = by_head(layer.alibi_slopes, cache.device)
        self._sinks = by_head(layer.sinks, cache.device)
        self._call = AttentionCall(
            cache=cache.data_ptr(),
            heads=layer.num_heads,
            kv_heads=layer.num_kv_heads,
            dim=layer.head_dim,
            block_size=layer.block_size,
            window=layer.sliding_window or 0,
            slopes=None if self._slopes is None else self._slopes.data_ptr(),
            sinks=None if self._sinks is None else self._sinks.data_ptr(),
            out_token=layer.num_heads * layer.head_dim,
            scale=layer.scale,
            soft_cap=layer.soft_cap or 0.0,
            type=_TYPES[layer.dtype],
            is_coded=layer.kv_cache_dtype == "int8",
        )
        self._address = ctypes.addressof(self._call)
        self._plan: Plan | None = None
        self._work: Work | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        dtype = self._dtype
        if self._plan is not plan:
            self._take(plan)
        wanted = query.dtype
        query, key, value = (contiguous_rows(tensor, dtype) for tensor in (query, key, value))
        out = torch.empty(query.shape, dtype=dtype)
        point_to_rows(self._call, query, key, value, out)
        self._attend(self._address)
        return out if wanted is dtype else out.to(wanted)

    def kernel_call(self, plan: Plan, /) -> int:
        """Return the address of the kernel's argument for the step of ``plan``.

        The caller of the kernel sets query, key, value and result. It is valid while this
        layer and the plan live.
        """
        if self._plan is not plan:
            self._take(plan)
        return self._address

    def _take(self, plan: Plan) -> None:
        """Point to what is the same in all layers of a step."""
        plan.bounds.check(len(self._cache), self._call.block_size)
        call, work = self._call, plan.work(self._shape)
        self._plan, self._work = plan, work
        call.starts, call.lengths, call.tables, call.slots, *others = work.addresses
        call.items, call.joins, call.shares, call.members, call.partials = others
        call.table_width, call.tokens, call.num_items, call.num_joins = work.counts
        call.threads = plan.num_threads


class CpuAttention(AttentionBackend):
    """Component ``cpu``; the kernels are compiled when the first layer is checked."""

    def __init__(self, options: CpuSettings, context: AttentionContext) -> None:
        self._instruction_set = options.instruction_set
        self._tiles_from = 1 if context.settings.deterministic else 2
        self._bindings: Bindings | None = None

    @property
    def bindings(self) -> Bindings:
        """The kernels, compiled on first use.

        Raises:
            CannotCompile: there is no compiler, or it fails.
            NoSuchInstructions: the processor lacks the instruction set that the options name.
        """
        if self._bindings is None:
            self._bindings = Bindings.load(self._instruction_set)
        return self._bindings

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why ``layer`` cannot be served: device, dtype, heads, slopes, or the kernels."""
        if torch.device(layer.device).type != "cpu":
            return f"it computes on CPUs, and the model is on {layer.device}"
        problem = dtype_problem(layer, _TYPES, ["int8"]) or heads_problem(layer)
        if problem is not None:
            return problem
        try:
            _ = self.bindings
        except NoSuchInstructions as error:
            return f"attention.instruction_set: {error}"
        except CannotCompile as error:
            return str(error)
        return None

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """``(num_blocks, 2, num_kv_heads, block_size, head_dim)``; in int8 the two bytes of a scale
        follow each row."""
        width = layer.head_dim + (_SCALE_BYTES if layer.kv_cache_dtype == "int8" else 0)
        return (num_blocks, 2, layer.num_kv_heads, layer.block_size, width)

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Return a plan that lists the work when the first layer asks for it."""
        return Plan(self.bindings, batch, self._tiles_from, torch.get_num_threads())

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``.

        Raises:
            ValueError: the cache is not contiguous.
        """
        check_contiguous(cache)
        return PagedLayer(self.bindings, layer, cache)
