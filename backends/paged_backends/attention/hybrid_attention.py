"""Component ``hybrid``: two attention components over one cache, for prefill and for decoding.

Sequences with one new token are computed by ``decode``, the others by ``prefill``. Each writes what
it is given and then reads. So the part whose blocks the other part reads in the same step comes
first; if each reads what the other writes, the decoding part is computed twice, before and after,
and the first results are dropped.

Shapes: T tokens of S sequences, W blocks in a row of the block tables; a part has R tokens of N
sequences.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.attention.settings import HybridSettings
from paged_backends.device import to_device
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    LayerAttention,
    SupportsCacheLayout,
    SupportsGraphCapture,
)
from paged_core.interfaces.layer import LayerSpec
from paged_core.plugins.chosen_component import ChosenComponent
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry


@dataclass(frozen=True, slots=True)
class Part:
    """Some sequences of a batch."""

    rows_R: Tensor
    """int64: their tokens in the whole batch."""
    batch: AttentionBatch


def decodes(batch: AttentionBatch) -> NDArray[np.bool_]:
    """Return which sequences have one new token, [S]."""
    is_decode_S: NDArray[np.bool_] = np.diff(batch.query_start_host) == 1
    return is_decode_S


def part_of(batch: AttentionBatch, sequences_N: NDArray[np.int64]) -> Part:
    """Return the part that has these sequences, in this order; nothing waits for the device."""
    starts_S = batch.query_start_host
    counts_N = np.diff(starts_S)[sequences_N]
    query_start = np.cumsum([0, *counts_N], dtype=np.int32)
    first_N = starts_S[sequences_N] - query_start[:-1]
    rows_R = np.arange(query_start[-1]) + np.repeat(first_N, counts_N)
    lengths_N = batch.seq_lens_host[sequences_N]
    device = batch.slot_mapping.device
    on_device_N = to_device(sequences_N, device)
    on_device_R = to_device(rows_R.astype(np.int64), device)
    return Part(
        on_device_R,
        AttentionBatch(
            query_start=to_device(query_start, device),
            seq_lens=batch.seq_lens.index_select(0, on_device_N),
            block_tables=batch.block_tables.index_select(0, on_device_N),
            slot_mapping=batch.slot_mapping.index_select(0, on_device_R),
            query_start_host=query_start,
            seq_lens_host=lengths_N,
            block_tables_host=batch.block_tables_host[sequences_N],
            max_query_len=int(counts_N.max()),
            max_seq_len=int(lengths_N.max()),
        ),
    )


def reads_what_is_written(readers: AttentionBatch, writers: AttentionBatch, size: int) -> bool:
    """Return whether a sequence of ``readers`` has a block that one of ``writers`` writes to.

    Args:
        size: tokens of a block.
    """
    first_N = (writers.seq_lens_host - np.diff(writers.query_start_host)) // size
    read = _blocks(readers, np.zeros_like(readers.seq_lens_host), size)
    return bool(np.isin(read, _blocks(writers, first_N, size)).any())


def _blocks(batch: AttentionBatch, first_N: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return the blocks of each sequence, from its block ``first_N`` on."""
    index_W = np.arange(batch.block_tables_host.shape[1])
    counts_N = -(-batch.seq_lens_host // size)
    is_held_NW = (index_W >= first_N[:, None]) & (index_W < counts_N[:, None])
    blocks: NDArray[np.int32] = batch.block_tables_host[is_held_NW]
    return blocks


@dataclass(frozen=True, slots=True)
class Member:
    """One of the two components."""

    role: str
    """``prefill`` or ``decode``."""
    name: str
    backend: AttentionBackend | None
    unavailable_reason: str | None
    """Why it cannot be used here; then it was not made."""

    def check(self, layer: LayerSpec) -> str | None:
        """Return why it does not serve ``layer``, or ``None``."""
        if self.backend is None:
            return self.unavailable_reason
        if isinstance(self.backend, SupportsCacheLayout):
            return "it has a cache layout of its own, which cannot be shared"
        return self.backend.check(layer)


@dataclass(frozen=True, slots=True)
class Pass:
    """A call of one component's layer."""

    role: str
    plan: Any
    rows: Tensor | None
    """[R] int64: the tokens that it is given; ``None``: all."""


class Plan:
    """Plan of one step; the order of the parts is found once for each size of blocks."""

    def __init__(self, batch: AttentionBatch, plans: Callable[[str, AttentionBatch], Any]) -> None:
        is_decode_S = decodes(batch)
        self._parts: dict[str, Part] = {}
        self._orders: dict[int, Sequence[Pass]] = {}
        if is_decode_S.all() or not is_decode_S.any():
            role = "decode" if is_decode_S.all() else "prefill"
            self._whole: Pass | None = Pass(role, plans(role, batch), None)
            return
        self._whole = None
        for role, is_member_S in (("prefill", ~is_decode_S), ("decode", is_decode_S)):
            self._parts[role] = part_of(batch, np.flatnonzero(is_member_S))
        self._passes = {
            role: Pass(role, plans(role, part.batch), part.rows_R)
            for role, part in self._parts.items()
        }

    def passes(self, block_size: int) -> Sequence[Pass]:
        """Return the calls, in order; what a later one computes replaces what was before."""
        if self._whole is not None:
            return (self._whole,)
        if block_size not in self._orders:
            self._orders[block_size] = self._order(block_size)
        return self._orders[block_size]

    def _order(self, block_size: int) -> Sequence[Pass]:
        prefill, decode = (self._parts[role].batch for role in ("prefill", "decode"))
        first, second = self._passes["prefill"], self._passes["decode"]
        if not reads_what_is_written(prefill, decode, block_size):
            return (first, second)
        if not reads_what_is_written(decode, prefill, block_size):
            return (second, first)
        return (second, first, second)


class HybridLayer:
    """Attention of one layer, by both components."""

    def __init__(self, layers: dict[str, LayerAttention], block_size: int) -> None:
        self._layers, self._block_size = layers, block_size

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        out: Tensor | None = None
        for one in plan.passes(self._block_size):
            layer = self._layers[one.role]
            if one.rows is None:
                return layer.forward(query, key, value, one.plan)
            if out is None:
                out = torch.empty_like(query, memory_format=torch.contiguous_format)
            some = [part.index_select(0, one.rows) for part in (query, key, value)]
            out.index_copy_(0, one.rows, layer.forward(some[0], some[1], some[2], one.plan))
        assert out is not None, "a batch has tokens"
        return out


class HybridAttention(AttentionBackend):
    """Component ``hybrid``."""

    def __init__(self, members: Sequence[Member], *, deterministic: bool) -> None:
        self._members = {member.role: member for member in members}
        self._deterministic = deterministic

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why one of the two does not serve ``layer``, or how their caches differ."""
        if self._deterministic:
            return (
                "which part computes a token depends on the rest of the batch, which deterministic "
                "rules out"
            )
        for member in self._members.values():
            reason = member.check(layer)
            if reason is not None:
                return f"{member.role} {member.name!r}: {reason}"
        return self._layout_problem(layer)

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """Return the shape, which both components have."""
        return self._backend("decode").cache_shape(layer, num_blocks)

    def block_dim(self) -> int:
        """Return the dimension, which both components have."""
        return self._backend("decode").block_dim()

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Return the plans of both components for their parts of the batch."""
        return Plan(batch, lambda role, part: self._backend(role).plan(part))

    def bind(self, layer: LayerSpec, cache: Any, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``."""
        layers = {role: self._backend(role).bind(layer, cache) for role in self._members}
        return HybridLayer(layers, layer.block_size)

    def _backend(self, role: str) -> AttentionBackend:
        backend = self._members[role].backend
        assert backend is not None, "check comes first"
        return backend

    def _layout_problem(self, layer: LayerSpec) -> str | None:
        """Return how the layouts of the caches differ, or ``None``."""
        # a block size that equals the number of heads would hide which of them comes first
        probes = (layer, replace(layer, block_size=2 * layer.block_size))
        first, second = (
            [(backend.cache_shape(probe, 7), backend.block_dim()) for probe in probes]
            for backend in map(self._backend, self._members)
        )
        if first == second:
            return None
        one, other = (member.name for member in self._members.values())
        return (
            f"the cache of {one!r} is {first[0][0]} for 7 blocks, and that of {other!r} is "
            f"{second[0][0]}; choose two components with one layout"
        )


class CapturableHybrid(HybridAttention):
    """A hybrid whose ``decode`` can be captured in CUDA graphs: only that is captured."""

    def plan_capture(self, batch: AttentionBatch, /) -> Plan:
        """See :class:`~paged_core.interfaces.attention.SupportsGraphCapture`."""
        decode: Any = self._backend("decode")
        return Plan(batch, lambda role, part: decode.plan_capture(part))

    def update_capture(self, plan: Plan, batch: AttentionBatch, /) -> None:
        """See :class:`~paged_core.interfaces.attention.SupportsGraphCapture`."""
        decode: Any = self._backend("decode")
        (whole,) = plan.passes(0)
        decode.update_capture(whole.plan, batch)


def make_hybrid(options: HybridSettings, context: AttentionContext) -> HybridAttention:
    """Make both components, found by name as the engine finds them.

    Raises:
        SettingsError: there is no such component, it is a hybrid itself, or an option is wrong.
        PluginError: it cannot be imported.
    """
    registry = context.registry or Registry.discover()
    members = [
        _member(role, chosen, registry, context)
        for role, chosen in (("prefill", options.prefill), ("decode", options.decode))
    ]
    is_captured = isinstance(members[1].backend, SupportsGraphCapture)
    kind = CapturableHybrid if is_captured else HybridAttention
    return kind(members, deterministic=context.settings.deterministic)


def details() -> str:
    """Return of what it can be made."""
    return "of two components that can be used here and lay out the cache alike"


def _member(
    role: str, chosen: ChosenComponent, registry: Registry, context: AttentionContext
) -> Member:
    own = chosen.options("attention", role, registry, refused=["auto", "hybrid"])
    reason = registry.get("attention", chosen.name).unavailable_reason(own)
    made = None if reason else make_component(registry, "attention", own, context)
    return Member(role, chosen.name, made, reason)
