"""Attention over the paged cache in plain PyTorch: slow to nobody's harm, and right on any device.

The batch is cut into tiles: sequences of equally many queries and similar length, padded to the
longest of them, or a run of queries of one long sequence. A tile is a handful of tensor operations.

Shapes: T tokens in the batch, S sequences, W blocks in a row of the block tables; in a tile N
sequences, Q queries of each, K keys; H key/value heads, G query heads for each of them, D head_dim.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_backends.attention.settings import TorchSettings
from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionParts,
    LayerAttention,
)
from paged_core.interfaces.layer import LayerSpec

_MAX_KEYS = 1 << 14
"""Keys gathered at once for a tile of several sequences; bounds the copy of the cache."""
_MAX_SCORES = 1 << 19
"""Scores per head computed at once; bounds the score matrix."""
_SLACK = 2048
"""Padding that a tile may carry whatever its share."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Part of a batch that is computed at once."""

    rows_NQ: Tensor
    """[N, Q] int64: the queries' places in the batch."""
    slots_NK: Tensor
    """[N, K] int64: where the keys lie in the cache; padding repeats the sequence's last key."""
    distance_NQK: Tensor
    """[N, Q, K] int64: how far a key lies before the query; negative: after it."""
    hidden_NQK: Tensor | None
    """[N, Q, K] bool: keys that a query must not see; ``None``: it sees all."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries ``first .. first + count`` of one sequence, as positions in it."""

    sequence: int
    row: int
    first: int
    count: int

    @property
    def num_keys(self) -> int:
        return self.first + self.count


class Plan:
    """What the layers of one step share; tiles are made once for each sliding window."""

    def __init__(self, batch: AttentionBatch) -> None:
        self._tables_SW = batch.block_tables
        self.slots_T = batch.slot_mapping
        self._device = batch.slot_mapping.device
        self._starts: list[int] = batch.query_start.tolist()
        self._lengths: list[int] = batch.seq_lens.tolist()
        self._tiles: dict[tuple[int | None, int], list[Tile]] = {}

    def tiles(self, window: int | None, block_size: int) -> list[Tile]:
        """Return the tiles that cover every query once, for layers of this ``window``."""
        key = (window, block_size)
        if key not in self._tiles:
            groups = _group(list(self._pieces()), window)
            self._tiles[key] = [self._tile(pieces, window, block_size) for pieces in groups]
        return self._tiles[key]

    def _pieces(self) -> Iterator[_Piece]:
        """Cut the queries of long chunks so that each piece's scores stay bounded."""
        for sequence, length in enumerate(self._lengths):
            row, end = self._starts[sequence], self._starts[sequence + 1]
            position = length - (end - row)
            while row < end:
                count = min(end - row, max(1, _MAX_SCORES // length))
                yield _Piece(sequence, row, position, count)
                row, position = row + count, position + count

    def _tile(self, pieces: Sequence[_Piece], window: int | None, block_size: int) -> Tile:
        count = pieces[0].count
        numbers = torch.tensor(
            [(piece.sequence, piece.row, piece.first) for piece in pieces], device=self._device
        )
        sequence_N, row_N, first_N = numbers.unbind(1)
        steps_Q = torch.arange(count, device=self._device)
        query_pos_NQ = first_N[:, None] + steps_Q
        num_keys = max(_num_keys(piece, window) for piece in pieces)
        start_N = torch.zeros_like(first_N)
        if window is not None:
            start_N = (first_N - (window - 1)).clamp_(min=0)
        key_pos_NK = start_N[:, None] + torch.arange(num_keys, device=self._device)
        last_N = first_N + (count - 1)
        held_NK = torch.minimum(key_pos_NK, last_N[:, None])
        blocks_NK = self._tables_SW[sequence_N[:, None], held_NK // block_size].long()
        distance_NQK = query_pos_NQ[:, :, None] - key_pos_NK[:, None, :]
        hidden_NQK = distance_NQK < 0
        if window is not None:
            hidden_NQK |= distance_NQK >= window
        # the tile of one query each, all of them equally long, needs no mask
        is_full = count == 1 and all(_num_keys(piece, window) == num_keys for piece in pieces)
        return Tile(
            rows_NQ=row_N[:, None] + steps_Q,
            slots_NK=blocks_NK * block_size + held_NK % block_size,
            distance_NQK=distance_NQK,
            hidden_NQK=None if is_full else hidden_NQK,
        )


class PagedLayer:
    """Attention of one layer over its cache."""

    def __init__(self, layer: LayerSpec, cache: Tensor) -> None:
        self._layer = layer
        self._keys_SHD, self._values_SHD = (part.flatten(0, 1) for part in cache)
        self._slopes_HG: Tensor | None = None
        if layer.alibi_slopes is not None:
            slopes = torch.tensor(layer.alibi_slopes, dtype=torch.float32, device=cache.device)
            self._slopes_HG = slopes.view(layer.num_kv_heads, -1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, plan: Plan, /) -> Tensor:
        """See :class:`~paged_core.interfaces.attention.LayerAttention`."""
        layer = self._layer
        self._keys_SHD.index_copy_(0, plan.slots_T, key.to(self._keys_SHD.dtype))
        self._values_SHD.index_copy_(0, plan.slots_T, value.to(self._values_SHD.dtype))
        out = query.new_empty(query.shape)
        for tile in plan.tiles(layer.sliding_window, layer.block_size):
            shape = tile.rows_NQ.shape
            rows = tile.rows_NQ.flatten()
            query_NQHGD = query.index_select(0, rows).view(
                *shape, layer.num_kv_heads, -1, layer.head_dim
            )
            out_NQHGD = self._attend(query_NQHGD, tile)
            out.index_copy_(0, rows, out_NQHGD.flatten(0, 1).flatten(1, 2).to(out.dtype))
        return out

    def _attend(self, query_NQHGD: Tensor, tile: Tile) -> Tensor:
        """Return [N, Q, H, G, D] float32."""
        layer = self._layer
        count, queries, heads, group, dim = query_NQHGD.shape
        keys_NHDK = self._gather(self._keys_SHD, tile).permute(0, 2, 3, 1)
        values_NHKD = self._gather(self._values_SHD, tile).transpose(1, 2)
        scaled = query_NQHGD.transpose(1, 2).float() * layer.scale
        scores = scaled.reshape(count, heads, queries * group, dim) @ keys_NHDK
        scores_NHQGK = scores.view(count, heads, queries, group, -1)
        if layer.soft_cap is not None:
            scores_NHQGK = scores_NHQGK.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
        if self._slopes_HG is not None:
            distance = tile.distance_NQK[:, None, :, None, :].float()
            scores_NHQGK = scores_NHQGK - self._slopes_HG[:, None, :, None] * distance
        if tile.hidden_NQK is not None:
            scores_NHQGK.masked_fill_(tile.hidden_NQK[:, None, :, None, :], float("-inf"))
        weights = scores_NHQGK.softmax(-1).view(count, heads, queries * group, -1)
        return (weights @ values_NHKD).view(count, heads, queries, group, dim).transpose(1, 2)

    def _gather(self, cache_SHD: Tensor, tile: Tile) -> Tensor:
        """Return the tile's part of the cache, [N, K, H, D] float32."""
        rows = cache_SHD.index_select(0, tile.slots_NK.flatten())
        return rows.view(*tile.slots_NK.shape, *cache_SHD.shape[1:]).float()


class TorchAttention(AttentionBackend):
    """Component ``torch``. Its cache: key or value, block, offset in it, head, dimension."""

    def __init__(self, options: TorchSettings, parts: AttentionParts) -> None:
        """Keep nothing: there is nothing to choose."""

    def check(self, layer: LayerSpec, /) -> str | None:
        """It serves every layer whose numbers fit together."""
        if layer.num_heads % layer.num_kv_heads:
            return (
                f"{layer.num_heads} query heads cannot be shared evenly among "
                f"{layer.num_kv_heads} key/value heads"
            )
        if layer.alibi_slopes is not None and len(layer.alibi_slopes) != layer.num_heads:
            return f"{len(layer.alibi_slopes)} ALiBi slopes for {layer.num_heads} query heads"
        return None

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        """``(2, num_blocks, block_size, num_kv_heads, head_dim)``."""
        return (2, num_blocks, layer.block_size, layer.num_kv_heads, layer.head_dim)

    def block_dim(self) -> int:
        """Blocks are counted by the second dimension."""
        return 1

    def plan(self, batch: AttentionBatch, /) -> Plan:
        """Sort the batch into tiles, when the first layer asks for them."""
        return Plan(batch)

    def bind(self, layer: LayerSpec, cache: Tensor, /) -> LayerAttention:
        """Return the attention of ``layer`` over ``cache``."""
        return PagedLayer(layer, cache)


def _num_keys(piece: _Piece, window: int | None) -> int:
    """Keys that a piece looks at: those its first query sees, and its own."""
    if window is None:
        return piece.num_keys
    return min(piece.num_keys, window - 1 + piece.count)


def _group(pieces: list[_Piece], window: int | None) -> list[list[_Piece]]:
    """Put pieces of equally many queries and similar length together, within the bounds."""
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
