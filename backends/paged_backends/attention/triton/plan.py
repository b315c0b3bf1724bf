"""What the layers of a step share in component ``triton``."""

from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.attention.block_bounds import BlockBounds
from paged_core.interfaces.attention import AttentionBatch


class Plan:
    """Of one step, or of a captured one: its tensors may then get other numbers.

    Args:
        batch: whose tensors the kernels read.
        tile_tokens: sequences with as many new tokens, or more, are computed in tiles.
        has_decodes: whether any sequence may have one new token that is computed in splits.
        bounds: to be checked before kernels get the tensors; ``None``: the numbers are not known.
    """

    def __init__(
        self,
        batch: AttentionBatch,
        *,
        tile_tokens: int,
        has_decodes: bool,
        bounds: BlockBounds | None,
    ) -> None:
        # the kernels get addresses: what is of another type or lies apart is copied
        self.query_start = batch.query_start.int().contiguous()
        self.seq_lens = batch.seq_lens.int().contiguous()
        self.block_tables = batch.block_tables.int().contiguous()
        self.slots = batch.slot_mapping.long().contiguous()
        self.num_tokens = len(self.slots)
        self.num_sequences = len(self.seq_lens)
        self.max_seq_len = batch.max_seq_len
        self.tile_tokens = tile_tokens
        self.has_tiles = batch.max_query_len >= tile_tokens
        self.has_decodes = has_decodes
        self.bounds = bounds
        self._scratch: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def scratch(self, num_heads: int, num_splits: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Return memory for the results of splits and their states, reused layer by layer:
        [S, heads, splits, head_dim] and [2, S, heads, splits], float32."""
        key = (num_heads, num_splits, head_dim)
        if key not in self._scratch:
            shape = (self.num_sequences, num_heads, num_splits)
            device = self.seq_lens.device
            self._scratch[key] = (
                torch.empty((*shape, head_dim), dtype=torch.float32, device=device),
                torch.empty((2, *shape), dtype=torch.float32, device=device),
            )
        return self._scratch[key]
