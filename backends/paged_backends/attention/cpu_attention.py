"""Component ``cpu``: attention over the paged cache by our own kernels, fused with writing it.

A cache is ``[blocks, 2, kv_heads, block_size, head_dim]``: all keys of a block, then its values, so
that a block is one run of memory and a head's keys are another within it.

A sequence of which one token is computed is read key by key, all heads of a group at once; several
tokens are computed in tiles. Sequences that begin with the same blocks, because they share a
prompt, have these read once for all of them. Otherwise how a sequence is divided follows from its
own length alone, so its result has the same bits in any company and with any number of threads. It
may differ in the last bits between a token computed alone, in a chunk, and along with others that
begin as it does; with ``deterministic`` in the settings everything is computed in tiles of one
sequence, and then it does not.

Shapes: T tokens, S sequences, H query heads, D head_dim.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_backends.attention.settings import CpuSettings
from paged_backends.kernels.cpu.compiler import CannotCompile
from paged_backends.kernels.cpu.instruction_set import NoSuchInstructions
from paged_backends.kernels.cpu.library import Library
from paged_backends.kernels.cpu.structs import INT32S, AttentionCall
from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionParts,
    LayerAttention,
)
from paged_core.interfaces.layer import LayerSpec

_TYPES = {"float32": 0, "bfloat16": 1}


Shape = tuple[int, int, int, int, int]
"""Block size, heads, key/value heads, head_dim, and sliding window or 0, of a layer."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of the layers of one shape in one step."""

    lists: list[Tensor]
    """Items, joins, shares, members; and room for results of parts of sequences, which the layers
    use one after another."""
    addresses: tuple[int, ...]
    """Of starts, lengths, tables and slots, and of the lists."""
    counts: tuple[int, ...]
    """The width of the tables, tokens, items and joins."""


class Plan:
    """What the layers of one step share; the work is listed once for each shape and window."""

    def __init__(
        self, library: Library, batch: AttentionBatch, tiles_from: int, num_threads: int
    ) -> None:
        self._library = library
        self._tiles_from = tiles_from
        self.num_threads = num_threads
        # held here, because the kernels get bare addresses
        self.starts = batch.query_start.int().contiguous()
        self.lengths = batch.seq_lens.int().contiguous()
        self.tables = batch.block_tables.int().contiguous()
        self.slots = batch.slot_mapping.long().contiguous()
        self._work: dict[Shape, Work] = {}

    def work(self, shape: Shape) -> Work:
        """Return the work of layers of this shape."""
        work = self._work.get(shape)
        if work is None:
            work = self._work[shape] = self._list_work(*shape)
        return work

    def _list_work(self, block_size: int, *shape: int) -> Work:
        sizes = (ctypes.c_int64 * 5)()

        def plan(*lists: int | None) -> None:
            self._library.plan(
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

    def __init__(self, library: Library, layer: LayerSpec, cache: Tensor) -> None:
        self._attend = library.attend
        self._cache = cache
        self._shape = (
            *(layer.block_size, layer.num_heads, layer.num_kv_heads, layer.head_dim),
            layer.sliding_window or 0,
        )
        self._slopes = (
            None if layer.alibi_slopes is None else torch.tensor(layer.alibi_slopes).float()
        )
        self._call = AttentionCall(
            cache=cache.data_ptr(),
            heads=layer.num_heads,
            kv_heads=layer.num_kv_heads,
            dim=layer.head_dim,
            block_size=layer.block_size,
            window=layer.sliding_window or 0,
            slopes=None if self._slopes is None else self._slopes.data_ptr(),
            out_token=layer.num_heads * layer.head_dim,
            scale=layer.scale,
            soft_cap=layer.soft_cap or 0.0,
            type=_TYPES[layer.dtype],
        )
        self._address = ctypes.addressof(self._call)
        self._plan: Plan | None = None
        self._work: Work | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        call, dtype = self._call, self._cache.dtype
        if self._plan is not plan:
            self._take(plan)
        wanted = query.dtype
        query, key, value = (_rows(tensor, dtype) for tensor in (query, key, value))
        out = torch.empty(query.shape, dtype=dtype)
        call.query, call.key, call.value = query.data_ptr(), key.data_ptr(), value.data_ptr()
        call.out = out.data_ptr()
        call.query_token, call.query_head, _ = query.stride()
        call.key_token, call.key_head, _ = key.stride()
        call.value_token, call.value_head, _ = value.stride()
        self._attend(self._address)
        return out if wanted is dtype else out.to(wanted)

    def call(self, plan: Plan) -> int:
        """Return the address of the kernel's argument for the steps of ``plan``.

        Query, key, value and result are left to whoever calls the kernel. It is valid while this
        layer and the plan live.
        """
        if self._plan is not plan:
            self._take(plan)
        return self._address

    def _take(self, plan: Plan) -> None:
        """Point to what is the same in all layers of a step."""
        call, work = self._call, plan.work(self._shape)
        self._plan, self._work = plan, work
        call.starts, call.lengths, call.tables, call.slots, *others = work.addresses
        call.items, call.joins, call.shares, call.members, call.partials = others
        call.table_width, call.tokens, call.num_items, call.num_joins = work.counts
        call.threads = plan.num_threads


class CpuAttention(AttentionBackend):
    """Component ``cpu``; the kernels are compiled when the first layer is checked."""

    def __init__(self, options: CpuSettings, parts: AttentionParts) -> None:
        self._instruction_set = options.instruction_set
        self._tiles_from = 1 if parts.settings.deterministic else 2
        self._library: Library | None = None

    @property
    def library(self) -> Library:
        """The kernels, compiled where they are not.

        Raises:
            CannotCompile: there is no compiler, or it fails.
            NoSuchInstructions: the processor lacks the instruction set that the options name.
        """
        if self._library is None:
            self._library = Library.load(self._instruction_set)
        return self._library

    def check(self, layer: LayerSpec, /) -> str | None:
        """Say what is against ``layer``: its device, its dtype, its numbers, or the kernels."""
        if torch.device(layer.device).type != "cpu":
            return f"it computes on CPUs, and the model is on {layer.device}"
        if layer.dtype not in _TYPES:
            return f"it computes in {' and '.join(_TYPES)}, and the cache is {layer.dtype}"
        if layer.num_heads % layer.num_kv_heads:
            return (
                f"{layer.num_heads} query heads cannot be shared evenly among "
                f"{layer.num_kv_heads} key/value heads"
            )
        if layer.alibi_slopes is not None and len(layer.alibi_slopes) != layer.num_heads:
            return f"{len(layer.alibi_slopes)} ALiBi slopes for {layer.num_heads} query heads"
        try:
            _ = self.library
        except (CannotCompile, NoSuchInstructions) as error:
            return str(error)
        return None

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """``(num_blocks, 2, num_kv_heads, block_size, head_dim)``."""
        return (num_blocks, 2, layer.num_kv_heads, layer.block_size, layer.head_dim)

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Hold the batch; its work is listed when the first layer asks for it."""
        return Plan(self.library, batch, self._tiles_from, torch.get_num_threads())

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``.

        Raises:
            ValueError: the cache is no run of memory.
        """
        if not cache.is_contiguous():
            raise ValueError(f"the cache must be contiguous, and its strides are {cache.stride()}")
        return PagedLayer(self.library, layer, cache)


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return it in ``dtype`` with heads whose numbers lie side by side."""
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
