"""Attention that is wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from paged_backends.attention.torch_attention import TorchAttention
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.layer import LayerSpec
from unit.faulty_settings import with_another
from unit.packed_attention import PackedAttention


def of_another_layer(**changes: Any) -> Any:
    """Return a ``bind`` for a layer with other numbers."""
    return lambda self, layer, cache: TorchAttention.bind(self, replace(layer, **changes), cache)


LAYERS = with_another(
    __name__,
    TorchAttention,
    "bind",
    {
        # sees past the sliding window
        "BoundlessAttention": of_another_layer(sliding_window=None),
        # forgets the soft cap, the slopes of ALiBi, and the sinks
        "UncappedAttention": of_another_layer(soft_cap=None),
        "FlatAttention": of_another_layer(alibi_slopes=None),
        "SinklessAttention": of_another_layer(sinks=None),
    },
)
globals().update(LAYERS)


class LateAttention(TorchAttention):
    """Reads the cache before the newest tokens are written."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        bound = super().bind(layer, cache)

        class Late:
            def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
                kept = cache.clone()
                bound.forward(query, key * 0, value * 0, plan)
                result = bound.forward(query, key * 0, value * 0, plan)
                cache.copy_(kept)
                bound.forward(query, key, value, plan)
                return result

        return Late()


class CrowdedAttention(TorchAttention):
    """Passes ``deterministic``, and has other last bits where sequences begin with one block."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        bound = super().bind(layer, cache)

        class Crowded:
            def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
                first = plan._tables_SW[:, 0]
                is_shared = len(first.unique()) < len(first)
                return bound.forward(query, key, value, plan) * (1 + 2**-20 * is_shared)

        return Crowded()


class UnreadAttention(PackedAttention):
    """Owns its layout, and copies block by block, over blocks that are still to be read."""

    def copy_blocks(
        self, source: Any, origins: Sequence[int], target: Any, destinations: Sequence[int], /
    ) -> None:
        for origin, destination in zip(origins, destinations, strict=True):
            super().copy_blocks(source, [origin], target, [destination])


class ShiftedAttention(TorchAttention):
    """Writes each key into the slot of the next token."""

    def plan(self, batch: AttentionBatch, /) -> Any:
        return super().plan(replace(batch, slot_mapping=batch.slot_mapping.roll(1)))


class WaitingAttention(TorchAttention):
    """Takes a size from the device."""

    def plan(self, batch: AttentionBatch, /) -> Any:
        return super().plan(replace(batch, max_seq_len=int(batch.seq_lens.max())))


class ChangingAttention(TorchAttention):
    """Counts in the arrays of a batch."""

    def plan(self, batch: AttentionBatch, /) -> Any:
        plan = super().plan(batch)
        batch.seq_lens_host[:] -= 1
        return plan


class ObligingAttention(TorchAttention):
    """Takes any cache, and stores no scales."""

    def check(self, layer: LayerSpec, /) -> str | None:
        return super().check(replace(layer, kv_cache_dtype="auto"))


class TurnedAttention(TorchAttention):
    """Gives query heads the key heads of others."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        bound = super().bind(layer, cache)

        class Turned:
            def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
                return bound.forward(query.flip(1), key, value, plan).flip(1)

        return Turned()


class UnpreparedAttention(TorchAttention):
    """Attends with heads as they come, though it says that it prepares them."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        bound = super().bind(layer, cache)

        class Unprepared:
            def forward(self, *rows_and_plan: Any) -> Any:
                return bound.forward(*rows_and_plan)

            def prepare_and_forward(self, *rows_and_plan: Any) -> Any:
                return bound.forward(*rows_and_plan[:-1])

        return Unprepared()


class LowAttention(TorchAttention):
    """Hides what is not to be seen by low scores."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        bound, fill = super().bind(layer, cache), torch.Tensor.masked_fill_

        class Low:
            def forward(self, *rows_and_plan: Any) -> Any:
                def lower(scores: Any, hidden: Any, _: float) -> Any:
                    return fill(scores, hidden, -1e4)

                with patch.object(torch.Tensor, "masked_fill_", lower):
                    return bound.forward(*rows_and_plan)

        return Low()


class AlikeAttention(TorchAttention):
    """Prepares batches of the same lengths once."""

    def __init__(self, options: Any, parts: Any) -> None:
        super().__init__(options, parts)
        self._plans: dict[Any, Any] = {}

    def plan(self, batch: AttentionBatch, /) -> Any:
        key = (*batch.seq_lens_host.tolist(), *batch.query_start_host.tolist())
        self._plans = {key: self._plans.get(key) or super().plan(batch)}
        return self._plans[key]


class CoarseAttention(TorchAttention):
    """Takes what it prepared last for a batch of as many tokens and sequences, and as long ones."""

    last: tuple[Any, Any] = (None, None)

    def plan(self, batch: AttentionBatch, /) -> Any:
        lengths = batch.query_start_host, batch.seq_lens_host
        sizes = (len(batch.slot_mapping), len(batch.seq_lens_host), batch.max_seq_len)
        if self.last[0] != sizes:
            self.last = sizes, lengths
        starts, lengths = self.last[1]
        return super().plan(replace(batch, query_start_host=starts, seq_lens_host=lengths))


class OfTablesAttention(TorchAttention):
    """Takes the lengths that it had for the same array of tables."""

    last: tuple[Any, Any] = (None, None)

    def plan(self, batch: AttentionBatch, /) -> Any:
        if self.last[0] is not batch.block_tables_host:
            self.last = batch.block_tables_host, batch.seq_lens_host
        return super().plan(replace(batch, seq_lens_host=self.last[1]))


class PlacesAttention(TorchAttention):
    """Keeps something for each length."""

    def plan(self, batch: AttentionBatch, /) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        for length in batch.seq_lens_host.tolist():
            kept.setdefault(length, torch.arange(length))
        return super().plan(batch)


class KeepingAttention(TorchAttention):
    """Keeps every plan."""

    def plan(self, batch: AttentionBatch, /) -> Any:
        plan = super().plan(batch)
        self.__dict__.setdefault("plans", []).append(plan)
        return plan


class _ChangingAttention(TorchAttention):
    """Changes its results."""

    def change(self, result: Any) -> Any:
        raise NotImplementedError

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        own = super().bind(layer, cache)
        change = self.change

        class Changed:
            def forward(self, *rows_and_plan: Any) -> Any:
                return change(own.forward(*rows_and_plan))

        return Changed()


def refill(self: _ChangingAttention, result: Any) -> Any:
    kept = self.__dict__.setdefault("kept", {})
    return kept.setdefault((result.shape, result.dtype), result.clone()).copy_(result)


RESULTS = with_another(
    __name__,
    _ChangingAttention,
    "change",
    {
        "WideAttention": lambda self, result: result.float(),
        "FlatRowsAttention": lambda self, result: result.flatten(1),
        # returns the same memory again
        "BufferAttention": refill,
    },
)
globals().update(RESULTS)


class LoopingAttention(TorchAttention):
    """Looks for the end of a block table that has none."""

    def plan(self, batch: AttentionBatch, /) -> Any:
        place = 0
        while batch.max_query_len > 1:
            place += 1
        return super().plan(batch)


class GrowingAttention(TorchAttention):
    """Goes on with the block tables of the last step where each sequence has grown by a token."""

    def plan(self, batch: AttentionBatch, /) -> Any:
        lengths, tables = self.__dict__.get("last", (None, None))
        if lengths is not None and [n + 1 for n in lengths] == batch.seq_lens.tolist():
            batch = replace(batch, block_tables=torch.where(tables > 0, tables, batch.block_tables))
        self.last = batch.seq_lens.tolist(), batch.block_tables
        return super().plan(batch)


class FirstSlopesAttention(TorchAttention):
    """Gives layers of as many heads the slopes that the first of them had."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        if layer.alibi_slopes is not None:
            kept = self.__dict__.setdefault("slopes", {})
            slopes = kept.setdefault(layer.num_heads, layer.alibi_slopes)
            layer = replace(layer, alibi_slopes=slopes)
        return super().bind(layer, cache)


class LongerAttention(TorchAttention):
    """Takes more slopes than there are heads."""

    def check(self, layer: LayerSpec, /) -> str | None:
        slopes = layer.alibi_slopes and layer.alibi_slopes[: layer.num_heads]
        return super().check(replace(layer, alibi_slopes=slopes))


class EvenAttention(TorchAttention):
    """Computes even numbers of a head."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        bound, odd = super().bind(layer, cache), layer.head_dim % 2

        class Even:
            def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
                result = bound.forward(query, key, value, plan)
                result[..., : odd * layer.head_dim] *= 2
                return result

        return Even()


class LimitedAttention(TorchAttention):
    """Sees the least of its options in the result."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self._is_least = options.limit == 1

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        scale = layer.scale * (1 + self._is_least)
        return super().bind(replace(layer, scale=scale), cache)


_SCRATCH = torch.zeros(1)


class ScratchAttention(TorchAttention):
    """Computes in a tensor of its module."""

    def bind(self, layer: LayerSpec, cache: Any, /) -> Any:
        bound = super().bind(layer, cache)

        class Scratch:
            def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
                result = bound.forward(query, key, value, plan)
                _SCRATCH[0] = result.sum()
                return result

        return Scratch()
