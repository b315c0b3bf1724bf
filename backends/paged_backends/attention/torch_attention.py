"""Component ``torch``: attention over the paged cache in plain PyTorch, correct on any device.

The batch is cut into tiles: sequences with the same number of queries and similar length, padded to
the longest of them, or a run of queries of one long sequence. A tile is a few tensor operations.
With ``deterministic: true`` it is one query, and slow.

Shapes: T tokens in the batch, S sequences, W blocks in a row of the block tables, C slots of the
cache; in a tile N sequences, Q queries of each, L keys of each; K key/value heads, G query heads
for each of them, D head_dim.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.float8 import pack, unpack
from paged_backends.attention.layers import by_head, cache_problem, heads_problem
from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.step import BlockBounds
from paged_backends.device import to_device
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.layer import LayerSpec

_MAX_KEYS = 1 << 14
"""Keys of a tile of several sequences; bounds the copy of the cache."""
_MAX_SCORES = 1 << 19
"""Scores per head computed at once; bounds the score matrix."""
_SLACK = 2048
"""Keys of padding that a tile may have, whatever their share."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Part of a batch that is computed at once."""

    rows_NQ: Tensor
    """[N, Q] int64: indices of the queries in T."""
    slots_NL: Tensor
    """[N, L] int64: slots of the keys; padding repeats the sequence's last key."""
    distance_NQL: Tensor
    """[N, Q, L] int64: position of the query less that of the key."""
    hidden_NQL: Tensor | None
    """[N, Q, L] bool: keys that a query does not see; ``None``: it sees all."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries of one sequence at its positions ``first .. first + count``."""

    sequence: int
    row: int
    first: int
    count: int

    @property
    def num_keys(self) -> int:
        return self.first + self.count


class Plan:
    """Plan of one step; tiles are made once for each sliding window."""

    def __init__(self, batch: AttentionBatch, *, one_by_one: bool) -> None:
        """``one_by_one``: a tile is one query, so that nothing else decides how it is rounded."""
        self._one_by_one = one_by_one
        self._tables_SW = batch.block_tables
        self.slots_T = batch.slot_mapping
        self._device = batch.slot_mapping.device
        self._starts: list[int] = batch.query_start_host.tolist()
        self._lengths: list[int] = batch.seq_lens_host.tolist()
        # torch checks the slots itself, when it writes to them
        self.bounds = BlockBounds.of(batch)
        self._tiles: dict[tuple[int | None, int], list[Tile]] = {}

    def tiles(self, window: int | None, block_size: int) -> list[Tile]:
        """Return the tiles that cover every query once, for layers of this ``window``."""
        key = (window, block_size)
        if key not in self._tiles:
            pieces = list(self._pieces())
            groups = [[one] for one in pieces] if self._one_by_one else _group(pieces, window)
            self._tiles[key] = [self._tile(pieces, window, block_size) for pieces in groups]
        return self._tiles[key]

    def _pieces(self) -> Iterator[_Piece]:
        """Cut the queries of long chunks so that each piece's scores stay bounded."""
        for sequence, length in enumerate(self._lengths):
            row, end = self._starts[sequence], self._starts[sequence + 1]
            position = length - (end - row)
            while row < end:
                most = 1 if self._one_by_one else max(1, _MAX_SCORES // length)
                count = min(end - row, most)
                yield _Piece(sequence, row, position, count)
                row, position = row + count, position + count

    def _tile(self, pieces: Sequence[_Piece], window: int | None, block_size: int) -> Tile:
        count = pieces[0].count
        numbers = np.array([(piece.sequence, piece.row, piece.first) for piece in pieces])
        sequence_N, row_N, first_N = to_device(numbers, self._device).unbind(1)
        steps_Q = torch.arange(count, device=self._device)
        query_pos_NQ = first_N[:, None] + steps_Q
        num_keys = max(_num_keys(piece, window) for piece in pieces)
        start_N = torch.zeros_like(first_N)
        if window is not None:
            start_N = (first_N - (window - 1)).clamp_(min=0)
        key_pos_NL = start_N[:, None] + torch.arange(num_keys, device=self._device)
        last_N = first_N + (count - 1)
        held_NL = torch.minimum(key_pos_NL, last_N[:, None])
        blocks_NL = self._tables_SW[sequence_N[:, None], held_NL // block_size].long()
        distance_NQL = query_pos_NQ[:, :, None] - key_pos_NL[:, None, :]
        hidden_NQL = distance_NQL < 0
        if window is not None:
            hidden_NQL |= distance_NQL >= window
        # one query each and equal lengths need no mask
        is_full = count == 1 and all(_num_keys(piece, window) == num_keys for piece in pieces)
        return Tile(
            rows_NQ=row_N[:, None] + steps_Q,
            slots_NL=blocks_NL * block_size + held_NL % block_size,
            distance_NQL=distance_NQL,
            hidden_NQL=None if is_full else hidden_NQL,
        )


class PagedLayer:
    """Attention of one layer over its cache."""

    def __init__(self, layer: LayerSpec, cache: Tensor) -> None:
        self._layer = layer
        self._float8 = layer.kv_cache_dtype != "auto"
        self._keys_CKD, self._values_CKD = (part.flatten(0, 1) for part in cache)
        slopes = by_head(layer.alibi_slopes, cache.device)
        self._slopes_KG = None if slopes is None else slopes.view(layer.num_kv_heads, -1)
        sinks = by_head(layer.sinks, cache.device)
        self._sinks_KG = None if sinks is None else sinks.view(layer.num_kv_heads, -1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        layer = self._layer
        plan.bounds.check(len(self._keys_CKD) // layer.block_size, layer.block_size)
        self._write(self._keys_CKD, key, plan)
        self._write(self._values_CKD, value, plan)
        out = query.new_empty(query.shape)
        for tile in plan.tiles(layer.sliding_window, layer.block_size):
            shape = tile.rows_NQ.shape
            rows = tile.rows_NQ.flatten()
            query_NQKGD = query.index_select(0, rows).view(
                *shape, layer.num_kv_heads, -1, layer.head_dim
            )
            out_NQKGD = self._attend(query_NQKGD, tile)
            out.index_copy_(0, rows, out_NQKGD.flatten(0, 1).flatten(1, 2).to(out.dtype))
        return out

    def _attend(self, query_NQKGD: Tensor, tile: Tile) -> Tensor:
        """Return [N, Q, K, G, D] float32."""
        layer = self._layer
        count, queries, heads, group, dim = query_NQKGD.shape
        keys_NKDL = self._gather(self._keys_CKD, tile).permute(0, 2, 3, 1)
        values_NKLD = self._gather(self._values_CKD, tile).transpose(1, 2)
        scaled = query_NQKGD.transpose(1, 2).float() * layer.scale
        scores = scaled.reshape(count, heads, queries * group, dim) @ keys_NKDL
        scores_NKQGL = scores.view(count, heads, queries, group, -1)
        if layer.soft_cap is not None:
            scores_NKQGL = scores_NKQGL.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
        if self._slopes_KG is not None:
            distance = tile.distance_NQL[:, None, :, None, :].float()
            scores_NKQGL = scores_NKQGL - self._slopes_KG[:, None, :, None] * distance
        if tile.hidden_NQL is not None:
            scores_NKQGL.masked_fill_(tile.hidden_NQL[:, None, :, None, :], float("-inf"))
        if self._sinks_KG is None:
            weights_NKQGL = scores_NKQGL.softmax(-1)
        else:
            sinks = self._sinks_KG[:, None, :, None].expand(*scores_NKQGL.shape[:-1], 1)
            weights_NKQGL = torch.cat([scores_NKQGL, sinks], -1).softmax(-1)[..., :-1]
        weights = weights_NKQGL.reshape(count, heads, queries * group, -1)
        return (weights @ values_NKLD).view(count, heads, queries, group, dim).transpose(1, 2)

    def _write(self, cache_CKD: Tensor, rows_TKD: Tensor, plan: Plan) -> None:
        stored = pack(rows_TKD) if self._float8 else rows_TKD.to(cache_CKD.dtype)
        cache_CKD.index_copy_(0, plan.slots_T, stored)

    def _gather(self, cache_CKD: Tensor, tile: Tile) -> Tensor:
        """Return the keys or values of the tile, [N, L, K, D] float32."""
        stored = cache_CKD.index_select(0, tile.slots_NL.flatten())
        rows = unpack(stored) if self._float8 else stored.float()
        return rows.view(*tile.slots_NL.shape, *rows.shape[1:])


class TorchAttention(AttentionBackend):
    """Component ``torch``."""

    def __init__(self, options: TorchSettings, context: AttentionContext) -> None:
        """There are no options."""
        self._one_by_one = context.settings.deterministic

    def check(self, layer: LayerSpec, /) -> str | None:
        """Return why ``layer`` cannot be served: heads, slopes, sinks, or its cache."""
        return heads_problem(layer) or cache_problem(layer, ["fp8_e4m3"])

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """``(2, num_blocks, block_size, num_kv_heads, head_dim)``; in float8 one byte more than
        ``head_dim``, see :mod:`~paged_backends.attention.float8`."""
        width = layer.head_dim + (layer.kv_cache_dtype != "auto")
        return (2, num_blocks, layer.block_size, layer.num_kv_heads, width)

    def block_dim(self) -> int:
        """Blocks are counted by the second dimension."""
        return 1

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Return a plan that makes tiles when the first layer asks for them."""
        return Plan(batch, one_by_one=self._one_by_one)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``."""
        return PagedLayer(layer, cache)


def _num_keys(piece: _Piece, window: int | None) -> int:
    """Keys that a piece reads: those that its first query sees, and its own."""
    if window is None:
        return piece.num_keys
    return min(piece.num_keys, window - 1 + piece.count)


def _group(pieces: list[_Piece], window: int | None) -> list[list[_Piece]]:
    """Group pieces with the same number of queries and similar length, within the bounds."""
    groups: list[list[_Piece]] = []
    total = 0
    pieces.sort(key=lambda piece: (piece.count, _num_keys(piece, window)))
    for piece in pieces:
        keys = _num_keys(piece, window)
        if groups and groups[-1][0].count == piece.count:
            padded = keys * (len(groups[-1]) + 1)
            if (
                padded <= _MAX_KEYS
                and padded * piece.count <= _MAX_SCORES
                and padded <= 1.5 * (total + keys) + _SLACK
            ):
                groups[-1].append(piece)
                total += keys
                continue
        groups.append([piece])
        total = keys
    return groups
