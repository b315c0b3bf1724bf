"""Writes keys and values into a cache whose heads come before the tokens of a block.

Shapes: T tokens in the batch, B blocks, P tokens in each, K key/value heads, D head_dim; X is 2,
for keys and values.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of a batch go in blocks of one size."""

    block_T: Tensor
    offset_T: Tensor
    source_T: Tensor
    """Which token is written there: a row without a slot repeats one that has a slot."""
    any_slot: Tensor
    """[] bool: whether any row has a slot."""


class SlotWrites:
    """The writes of one step's layers; they wait for nothing and can be captured in a CUDA graph.

    Args:
        slots_T: int64.
        may_be_empty: whether slots may be -1, where nothing is written. Such a row repeats the
            write of another row, or, if there is none, writes what is there already.
    """

    def __init__(self, slots_T: Tensor, *, may_be_empty: bool = False) -> None:
        self._slots_T = slots_T
        self._may_be_empty = may_be_empty
        self._places: dict[int, Places] = {}

    def write(self, cache_BXKPD: Tensor, key_TKD: Tensor, value_TKD: Tensor) -> None:
        """Write the keys and values of the whole batch."""
        size = cache_BXKPD.shape[3]
        if size not in self._places:
            self._places[size] = self._find(size)
        places = self._places[size]
        cells_BPXKD = cache_BXKPD.permute(0, 3, 1, 2, 4)
        at = (places.block_T, places.offset_T)
        rows_TXKD = torch.stack((key_TKD, value_TKD), 1).to(cache_BXKPD.dtype)
        if self._may_be_empty:
            rows_TXKD = rows_TXKD.index_select(0, places.source_T)
            rows_TXKD = torch.where(places.any_slot, rows_TXKD, cells_BPXKD[at])
        cells_BPXKD.index_put_(at, rows_TXKD)

    def refresh(self) -> None:
        """Take over other numbers in the slots, in the tensors that a graph has captured."""
        for size, places in self._places.items():
            for old, new in zip(_tensors(places), _tensors(self._find(size)), strict=True):
                old.copy_(new)

    def _find(self, size: int) -> Places:
        slots_T = self._slots_T
        rows_T = torch.arange(len(slots_T), device=slots_T.device)
        has_slot_T = slots_T >= 0
        if self._may_be_empty:
            rows_T = torch.where(has_slot_T, rows_T, has_slot_T.int().argmax())
            slots_T = slots_T.index_select(0, rows_T).clamp(min=0)
        return Places(
            slots_T.div(size, rounding_mode="floor"), slots_T % size, rows_T, has_slot_T.any()
        )


def _tensors(places: Places) -> tuple[Tensor, ...]:
    return (places.block_T, places.offset_T, places.source_T, places.any_slot)
