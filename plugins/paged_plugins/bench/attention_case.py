"""A batch for benchmarks of attention: equal sequences in a cache of shuffled blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from paged_core.errors import SettingsError
from paged_core.interfaces.attention import AttentionBatch
from paged_core.interfaces.layer import LayerSpec

_PATTERN = re.compile(r"(\d+)x(\d+)(?:\+(\d+))?")
_CACHES = 1 << 28
_MOST_LAYERS = 64


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Equal sequences: some tokens of each are cached, and some are new."""

    num_sequences: int
    num_cached: int
    num_new: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``SEQUENCESxCACHED+NEW``; without ``+NEW``, one token is new.

        Raises:
            SettingsError: the text has another form.
        """
        found = _PATTERN.fullmatch(text)
        if found is None or not int(found[1]) or found[3] == "0":
            raise SettingsError(
                f"--batch {text}: give the number of sequences, and of cached and new tokens of "
                "each, such as 16x255+1 (decode), 1x0+512 (prefill) or 8x512+32 (a prefill chunk)"
            )
        return cls(int(found[1]), int(found[2]), int(found[3] or 1))

    def __str__(self) -> str:
        return f"{self.num_sequences}x{self.num_cached}+{self.num_new}"

    @property
    def length(self) -> int:
        """Tokens of each sequence."""
        return self.num_cached + self.num_new

    def read_bytes(self, layer: LayerSpec, num_shared: int) -> int:
        """Bytes of keys and values read in a layer; a prefix shared by all is counted once."""
        shared = min(num_shared, self.num_cached)
        tokens = self.num_sequences * (self.length - shared) + shared
        return tokens * layer.bytes_per_token

    def operations(self, layer: LayerSpec) -> int:
        """Floating-point operations of a layer: two products of every query and key it sees."""
        seen = self.num_new * self.num_cached + self.num_new * (self.num_new + 1) // 2
        return 4 * self.num_sequences * seen * layer.num_heads * layer.head_dim

    def num_layers(self, layer: LayerSpec) -> int:
        """Return how many layers to run in turn, so that their keys and values together exceed what
        the caches of a device hold, and each layer reads its own from memory."""
        own = self.num_sequences * self.length * layer.bytes_per_token
        return max(2, min(_MOST_LAYERS, _CACHES // own))

    def batch(self, layer: LayerSpec, num_shared: int) -> tuple[AttentionBatch, int]:
        """Return the batch, and the number of blocks that its tables refer to.

        Args:
            num_shared: cached tokens that all sequences share as a prefix, in whole blocks.
        """
        import torch

        size, count = layer.block_size, self.num_sequences
        width = -(-self.length // size)
        num_blocks = width * count
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
        tables = order.view(count, width)
        num_common = min(num_shared, self.num_cached) // size
        tables[:, :num_common] = tables[0, :num_common].clone()
        positions = torch.arange(self.num_cached, self.length)
        slots = tables[:, positions // size] * size + positions % size
        starts = (torch.arange(count + 1) * self.num_new).int()
        lengths = torch.full((count,), self.length).int()
        tables = tables.int()
        batch = AttentionBatch(
            query_start=starts.to(layer.device),
            seq_lens=lengths.to(layer.device),
            block_tables=tables.to(layer.device),
            slot_mapping=slots.flatten().to(layer.device),
            query_start_host=starts.numpy(),
            seq_lens_host=lengths.numpy(),
            block_tables_host=tables.numpy(),
            max_query_len=self.num_new,
            max_seq_len=self.length,
        )
        return batch, num_blocks
