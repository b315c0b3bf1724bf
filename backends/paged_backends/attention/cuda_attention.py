"""Component ``cuda``: attention over the paged cache by our own CUDA C++ kernels.

A cache is read head by head (see :mod:`~paged_backends.attention.cache`). New keys and values are
written into their slots; then rows that decode are computed, the keys of a row shared among thread
blocks and the results combined, and chunks of several tokens in tiles; both on tensor cores, unless
the layer is of float32, which is computed row by row on CUDA cores.

The bits of a result may depend on how many sequences the batch has, since the keys of few are
shared among more thread blocks, and on whether a token was computed alone or in a chunk. With
``deterministic: true`` they do not: float16 and bfloat16 are computed in tiles, float32 row by row,
and the keys are divided by a rule that depends on the row alone; decoding is slower.

Source: W. Kwon et al., Efficient Memory Management for Large Language Model Serving with
PagedAttention, 2023; the division of keys, T. Dao et al., Flash-Decoding, 2023.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.cache import head_major_shape
from paged_backends.attention.layers import by_head, dtype_problem, heads_problem
from paged_backends.attention.settings import CudaSettings
from paged_backends.attention.step import BlockBounds, KernelBatch, Scratch, point_to_rows
from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.kernel import (
    DTYPES,
    HEAD_DIM_MULTIPLE,
    MAX_HEAD_DIM,
    Argument,
    BlockCopier,
    Call,
    Grid,
    Kernel,
    KernelError,
    KernelModule,
    KeySplits,
    Variant,
    divider,
)
from paged_backends.kernels.cuda.targets import GpuTarget, Target
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec
from paged_core.log import get_logger

_log = get_logger()

_ALIGNMENT = 16
"""Bytes that a kernel loads at once: rows begin at multiples."""


class Plan(KernelBatch):
    """Plan of one step: the batch, and the launches of each kind of layer."""

    def __init__(self, batch: AttentionBatch) -> None:
        super().__init__(batch)
        self.addresses = tuple(
            tensor.data_ptr() for tensor in (self.starts, self.lengths, self.tables, self.slots)
        )
        self.longest_single = _longest_single(batch)
        self.bounds = BlockBounds.of(batch)
        """To be checked before a kernel gets the addresses."""
        self.is_captured = False
        self._launches: dict[LayerKernels, Launches] = {}

    def launches(self, kernels: LayerKernels) -> Launches:
        """Return what layers with these kernels launch; made once."""
        made = self._launches.get(kernels)
        if made is None:
            made = self._launches[kernels] = kernels.launches(self)
        return made

    def update(self, batch: AttentionBatch) -> None:
        """Divide the keys anew, in all kinds of layers, for the sequences of ``batch``."""
        for kernels, launches in self._launches.items():
            kernels.update(launches, batch)


@dataclass(slots=True)
class Launches:
    """Kernels that layers of one kind launch in one step."""

    kernels: tuple[tuple[Kernel, Grid], ...]
    """One after another."""
    splits: KeySplits
    split: Tensor
    """Keys of a split at least [1] int32; a captured step may get others."""
    keys: int
    """The number that it has."""
    partials: Tensor | None = None
    """Results of splits, before they are combined; used by layer after layer."""


class LayerKernels:
    """The kernels of layers of one kind, and how they are launched for a batch."""

    def __init__(
        self,
        target: Target,
        layer: LayerSpec,
        device: torch.device,
        deterministic: bool,
        prefill_tile: str = "mma",
        scratch: Scratch | None = None,
    ) -> None:
        """
        Raises:
            CannotCompile: there is no compiler, or it fails.
            KernelError: the driver refuses the kernels.
        """
        variant = Variant.of(layer, target.groups)
        if prefill_tile == "wgmma":
            variant = _with_warpgroups(variant, layer, target, device)
        self.module = target.module(variant, device)
        size = ctypes.sizeof(Call)
        self.write = self.module.kernel(variant.write, size)
        self.decode = self.module.kernel(variant.decode, size)
        self.combine = self.module.kernel(variant.combine, size)
        self.tiles = None if variant.tiles is None else self.module.kernel(variant.tiles, size)
        if self.tiles is None:  # of float32, whose tensor cores round
            self.tiles_from = 0
        else:
            self.tiles_from = 1 if deterministic else 2
        self._deterministic = deterministic
        self._device = device
        self._slots = target.multiprocessors(device) * self.decode.resident
        self._heads, self._kv_heads = layer.num_heads, layer.num_kv_heads
        self._group = layer.num_heads // layer.num_kv_heads
        self._blocks = layer.num_kv_heads * -(-self._group // variant.group)
        self._dim = layer.head_dim
        self._window = layer.sliding_window
        self._scratch = scratch or Scratch()
        self._numbers: dict[int, Tensor] = {}

    def launches(self, plan: Plan) -> Launches:
        """Return what is launched for a batch."""
        splits, partials = KeySplits.one(), None
        if not plan.num_tokens:  # a grid has at least one block
            return Launches((), splits, self._number(splits.keys), splits.keys)
        kernels: list[tuple[Kernel, Grid]] = [(self.write, (plan.num_tokens, 1, 1))]
        rows, longest = self._rows(plan)
        if rows:
            splits = self._splits(rows, longest)
            kernels.append((self.decode, (rows, self._blocks, splits.count)))
            if splits.count > 1:
                size = rows * self._heads * splits.count * (self._dim + 2)
                partials = self._scratch.take(size, self._device)
                kernels.append((self.combine, (rows, self._heads, 1)))
        if self.tiles is not None and plan.max_query_len >= self.tiles_from:
            tiles = plan.num_tokens * self._group // self.tiles.geometry.rows
            kernels.append((self.tiles, (tiles + plan.num_sequences, self._kv_heads, 1)))
        split = self._number(splits.keys)
        if plan.is_captured:
            split = split.clone()
        return Launches(tuple(kernels), splits, split, splits.keys, partials)

    def update(self, launches: Launches, batch: AttentionBatch) -> None:
        """Have a captured step divide the keys as suits the sequences of ``batch``."""
        if self._deterministic:
            return
        rows, longest = int(np.count_nonzero(batch.seq_lens_host)), batch.max_seq_len
        longest = longest if self._window is None else min(longest, self._window)
        keys = self._splits(rows, longest).keys_for(launches.splits, longest)
        if keys != launches.keys:
            launches.split.fill_(keys)
            launches.keys = keys

    def _number(self, value: int) -> Tensor:
        """Return a number [1] int32 on the device, made once."""
        if value not in self._numbers:
            made = torch.full((1,), value, dtype=torch.int32, device=self._device)
            self._numbers[value] = made
        return self._numbers[value]

    def _rows(self, plan: Plan) -> tuple[int, int]:
        """Return how many rows are computed one by one, and the keys that one sees at most."""
        if self.tiles is None:
            return plan.num_tokens, plan.max_seq_len
        if self.tiles_from == 1 or not plan.longest_single:
            return 0, 0
        return plan.num_sequences, plan.longest_single

    def _splits(self, rows: int, longest: int) -> KeySplits:
        return KeySplits.choose(
            rows=rows,
            blocks=self._blocks,
            longest=longest if self._window is None else min(longest, self._window),
            slots=self._slots,
            fixed=self._deterministic,
        )


class PagedLayer:
    """Attention of one layer over its cache."""

    def __init__(self, kernels: LayerKernels, layer: LayerSpec, cache: Tensor) -> None:
        self._kernels = kernels
        self._module: KernelModule = kernels.module
        self._cache = cache
        self._dtype: torch.dtype = getattr(torch, layer.dtype)
        self._bytes = self._dtype.itemsize
        self._block_size = layer.block_size
        self._slopes = by_head(layer.alibi_slopes, cache.device)
        self._sinks = by_head(layer.sinks, cache.device)
        factor, shift = divider(layer.block_size)
        self._call = Call(
            keys=cache[:, 0].data_ptr(),
            values=cache[:, 1].data_ptr(),
            slopes=None if self._slopes is None else self._slopes.data_ptr(),
            sinks=None if self._sinks is None else self._sinks.data_ptr(),
            cache_block=cache.stride(0),
            cache_head=cache.stride(2),
            heads=layer.num_heads,
            kv_heads=layer.num_kv_heads,
            dim=layer.head_dim,
            block_size=layer.block_size,
            block_factor=factor,
            block_shift=shift,
            window=layer.sliding_window or 0,
            rows_are_tokens=kernels.tiles is None,
            tiles_from=kernels.tiles_from,
            scale=layer.scale,
            soft_cap=layer.soft_cap or 0.0,
        )
        self._argument = Argument(self._call)
        self._plan: Plan | None = None
        self._launches: Launches | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        dtype = self._dtype
        launches = self._launches if self._plan is plan else self._take(plan)
        assert launches is not None
        wanted = query.dtype
        query, key, value = self._rows(query), self._rows(key), self._rows(value)
        out = torch.empty(query.shape, dtype=dtype, device=query.device)
        point_to_rows(self._call, query, key, value, out)
        module = self._module
        if module.declares:
            self._declare(query=query, key=key, value=value, out=out)
        stream, argument = module.stream(), self._argument
        for kernel, grid in launches.kernels:
            kernel.launch(grid, argument, stream)
        return out if wanted is dtype else out.to(wanted)

    def _rows(self, tensor: Tensor) -> Tensor:
        """Return it in the layer's dtype, each row at a multiple of 16 bytes, or copied."""
        if tensor.dtype is not self._dtype:
            tensor = tensor.to(self._dtype)
        token, head, step = tensor.stride()
        misfit = tensor.data_ptr() | token * self._bytes | head * self._bytes
        if step == 1 and misfit % _ALIGNMENT == 0:
            return tensor
        return tensor.clone(memory_format=torch.contiguous_format)

    def _take(self, plan: Plan) -> Launches:
        """Point to what is the same in all layers of a step."""
        plan.bounds.check(len(self._cache), self._block_size)
        call, launches = self._call, plan.launches(self._kernels)
        splits, partials = launches.splits, launches.partials
        call.split = launches.split.data_ptr()
        call.query_start, call.lengths, call.tables, call.slots = plan.addresses
        call.table_width = plan.tables.shape[1]
        call.tokens, call.sequences = plan.num_tokens, plan.num_sequences
        call.max_splits, call.num_splits = splits.most, splits.count
        call.partials = None if partials is None else partials.data_ptr()
        self._plan, self._launches = plan, launches
        return launches

    def _declare(self, **rows: Tensor) -> None:
        plan, launches = self._plan, self._launches
        assert plan is not None
        assert launches is not None
        self._module.declare(
            {
                **rows,
                "cache": self._cache,
                "query_start": plan.starts,
                "lengths": plan.lengths,
                "tables": plan.tables,
                "slots": plan.slots,
                "slopes": self._slopes,
                "sinks": self._sinks,
                "partials": launches.partials,
                "split": launches.split,
            }
        )


class CudaAttention(AttentionBackend):
    """Component ``cuda``; the kernels of a layer are compiled when it is checked.

    It is a :class:`~paged_core.interfaces.attention.SupportsGraphCapture`.
    """

    def __init__(self, options: CudaSettings, context: AttentionContext) -> None:
        self.target: Target = GpuTarget()
        self._deterministic = context.settings.deterministic
        self._prefill_tile = options.prefill_tile
        self._kernels: dict[tuple[object, ...], LayerKernels] = {}
        self._copiers: dict[torch.device, BlockCopier] = {}
        self._scratch = Scratch()

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why ``layer`` cannot be served: device, dtype, heads, slopes, head_dim, or the
        kernels."""
        device = torch.device(layer.device)
        problem = (
            self.target.problem(device)
            or dtype_problem(layer, DTYPES, ["fp8_e4m3"])
            or heads_problem(layer)
            or _dim_problem(layer)
        )
        if problem is not None:
            return problem
        try:
            self._kernels_of(layer, device)
        except (CannotCompile, KernelError) as error:
            return str(error)
        return None

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """See :func:`~paged_backends.attention.cache.head_major_shape`."""
        return head_major_shape(layer, num_blocks)

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Return a plan; what is launched is found when the first layer asks for it."""
        return Plan(batch)

    def plan_capture(self, batch: AttentionBatch, /) -> Plan:
        """See :class:`~paged_core.interfaces.attention.SupportsGraphCapture`.

        Raises:
            ValueError: a sequence has several tokens, or a tensor would be copied, and so not
                get the numbers of later batches.
        """
        if batch.max_query_len != 1:
            raise ValueError(
                f"a graph is captured for one token of each sequence, not {batch.max_query_len}"
            )
        plan = Plan(batch)
        given = (batch.query_start, batch.seq_lens, batch.block_tables, batch.slot_mapping)
        if plan.addresses != tuple(tensor.data_ptr() for tensor in given):
            raise ValueError(
                "the tensors of a batch to capture must be contiguous and int32, slots int64"
            )
        plan.longest_single, plan.is_captured = batch.max_seq_len, True
        return plan

    def update_capture(self, plan: Plan, batch: AttentionBatch, /) -> None:
        """See :class:`~paged_core.interfaces.attention.SupportsGraphCapture`: the kernels read all
        from the tensors, and how the keys are divided.

        Raises:
            ValueError: a sequence is longer than at the capture.
        """
        if batch.max_seq_len > plan.max_seq_len:
            raise ValueError(
                f"a sequence has {batch.max_seq_len} tokens, and the graph was captured for "
                f"{plan.max_seq_len}"
            )
        plan.update(batch)

    def copy_blocks_of_layers(
        self, caches: Tensor, origins: Sequence[int], destinations: Sequence[int], /
    ) -> None:
        """See :class:`~paged_core.interfaces.attention.SupportsBlockCopies`."""
        copier = self._copiers.get(caches.device)
        if copier is None:
            # every module has the kernel; that of a layer is loaded already
            module = next(iter(self._kernels.values())).module
            copier = self._copiers[caches.device] = BlockCopier(module, caches.device)
        copier.copy(caches.unbind(0), origins, destinations)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``.

        Raises:
            ValueError: the numbers of a head are not contiguous in the cache, or not aligned.
            CannotCompile: there is no compiler, or it fails.
            KernelError: the driver refuses the kernels.
        """
        _check_cache(layer, cache)
        return PagedLayer(self._kernels_of(layer, cache.device), layer, cache)

    def _kernels_of(self, layer: LayerSpec, device: torch.device) -> LayerKernels:
        """Return the kernels of the layer, the same for all of its kind."""
        key = (
            *(layer.dtype, layer.kv_cache_dtype, layer.num_heads, layer.num_kv_heads),
            *(layer.head_dim, layer.sliding_window, device.type, device.index),
        )
        if key not in self._kernels:
            self._kernels[key] = LayerKernels(
                self.target, layer, device, self._deterministic, self._prefill_tile, self._scratch
            )
        return self._kernels[key]


def _with_warpgroups(
    variant: Variant, layer: LayerSpec, target: Target, device: torch.device
) -> Variant:
    """Return the variant whose tiles are multiplied by warpgroups, if there is one."""
    problem = variant.warpgroup_problem() or target.warpgroup_problem(device)
    if layer.sinks is not None:
        problem = "the layer has attention sinks, for which they have no registers left"
    if problem is None:
        return replace(variant, warpgroups=True)
    _log.warning("prefill_tile_replaced", wanted="wgmma", used="mma", reason=problem)
    return variant


def _longest_single(batch: AttentionBatch) -> int:
    """Return the length of the longest sequence of one new token, 0 if there is none."""
    if batch.max_query_len == 1:
        return batch.max_seq_len
    is_single = np.diff(batch.query_start_host) == 1
    return int(batch.seq_lens_host[is_single].max(initial=0))


def _dim_problem(layer: LayerSpec) -> str | None:
    if layer.head_dim % HEAD_DIM_MULTIPLE or layer.head_dim > MAX_HEAD_DIM:
        return (
            f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE}, {MAX_HEAD_DIM} at most, and is "
            f"{layer.head_dim}"
        )
    return None


def _check_cache(layer: LayerSpec, cache: Tensor) -> None:
    wanted = head_major_shape(layer, len(cache))
    if tuple(cache.shape) != wanted:
        raise ValueError(f"the cache must have the shape {wanted}, and has {tuple(cache.shape)}")
    inner = cache[0, 0, 0]
    if not inner.is_contiguous():
        raise ValueError(
            f"the numbers of a head must be contiguous in the cache, and its strides are "
            f"{cache.stride()}"
        )
