"""What the providers are told of the sequences of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paged_core.interfaces.attention import AttentionBatch


@dataclass(frozen=True, slots=True)
class Sequences:
    """The S sequences of one step's batch; all tensors are int32 and contiguous."""

    starts: Tensor
    """[S + 1]: running sums of the numbers of queries."""
    ends: Tensor
    """[S + 1]: running sums of :attr:`lengths`."""
    lengths: Tensor
    """[S]: tokens of each sequence, the new ones included."""
    tables: Tensor
    """[S, W]: block ids."""
    max_query_len: int
    max_seq_len: int

    @classmethod
    def of(cls, batch: AttentionBatch) -> Sequences:
        """Return those of ``batch``, whose tensors are used as they are."""
        lengths = batch.seq_lens.int().contiguous()
        made = cls(
            starts=batch.query_start.int().contiguous(),
            ends=torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device),
            lengths=lengths,
            tables=batch.block_tables.int().contiguous(),
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
        )
        made.refresh()
        return made

    def refresh(self) -> None:
        """Add the lengths up again, after they changed in place; waits for nothing."""
        torch.cumsum(self.lengths, 0, dtype=torch.int32, out=self.ends[1:])
