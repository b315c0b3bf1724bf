"""One step's work as arrays, made anew or from the step before.

Sequences that decode together do so for many steps: what stays the same between two of them (the
sequences, their rows, their block tables but for single entries) is kept.

Shapes: T tokens of S sequences in the batch, W blocks per sequence.
"""

# ruff: noqa: N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.executors.known_sequence import KnownSequence
from paged_backends.executors.sequence_rows import SequenceRows
from paged_core.ids import SeqId
from paged_core.interfaces.attention import AttentionBatch
from paged_core.step import StepInput

_SPARE_BLOCKS = 8
"""Columns that kept block tables have to spare, so that they are not widened for every block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's work. Its arrays are never written again."""

    sequences: list[KnownSequence]
    rows_S: NDArray[np.int64]
    """The sequences' rows in the arrays of :class:`SequenceRows`."""
    tenants_S: NDArray[np.int64]
    """Of these rows, see there."""
    counts_S: NDArray[np.int64]
    """Tokens to compute in this step."""
    computed_S: NDArray[np.int64]
    """Tokens computed before this step."""
    last_S: NDArray[np.int64]
    """Index in T of each sequence's last token of this step."""
    complete_S: NDArray[np.bool_]
    """Whether all tokens of the sequence are computed after this step, so that it can draw one."""
    unknown_S: NDArray[np.bool_]
    """Whether the token to compute is drawn by a step under way: it is on the device only."""
    tokens_T: NDArray[np.int64]
    """Any number where the token is unknown."""
    positions_T: NDArray[np.int64]
    slots_T: NDArray[np.int64]
    starts: NDArray[np.int32]
    """[S + 1]: the sequences' tokens in T."""
    lengths_S: NDArray[np.int32]
    tables_SW: NDArray[np.int32]
    """The same array as in the step before if it has not changed."""
    max_query_len: int
    max_seq_len: int

    def attention(self, upload: Callable[[NDArray[Any]], Tensor]) -> AttentionBatch:
        """Return what attention needs; ``upload`` copies an array to the device."""
        return AttentionBatch(
            query_start=upload(self.starts),
            seq_lens=upload(self.lengths_S),
            block_tables=upload(self.tables_SW),
            slot_mapping=upload(self.slots_T),
            query_start_host=self.starts,
            seq_lens_host=self.lengths_S,
            block_tables_host=self.tables_SW,
            max_query_len=self.max_query_len,
            max_seq_len=self.max_seq_len,
        )


class _DecodeBatch:
    """Sequences that decode one token each, step after step."""

    def __init__(self, ids: list[SeqId], rows: SequenceRows) -> None:
        count = len(ids)
        self.ids = ids
        self.sequences = rows.of(ids)
        self.rows_S = np.fromiter((sequence.row for sequence in self.sequences), np.int64, count)
        self.tenants_S = rows.tenant_C[self.rows_S]
        self.owner_S = np.arange(count)
        self.ones_S = np.ones(count, np.int64)
        self.starts = np.arange(count + 1, dtype=np.int32)
        self._places = {seq_id: place for place, seq_id in enumerate(ids)}
        self._rows = rows
        self.tables_SW: NDArray[np.int32] = np.zeros((count, 0), np.int32)

    def edit(self, step: StepInput) -> None:
        """Set single entries of the block tables, as was done in those of the rows."""
        if not step.edit_ids:
            return
        if max(step.edit_indices) >= self.tables_SW.shape[1]:
            self.tables_SW = self.tables_SW[:, :0]  # read again by reach()
        else:
            self.tables_SW = self.tables_SW.copy()
            for seq_id, index, block in zip(
                step.edit_ids, step.edit_indices, step.edit_blocks, strict=True
            ):
                place = self._places.get(seq_id)
                if place is not None:
                    self.tables_SW[place, index] = block

    def reach(self, num_blocks: int) -> None:
        """Widen the tables to ``num_blocks`` at least."""
        if num_blocks > self.tables_SW.shape[1]:
            self.tables_SW = self._rows.tables_CW[self.rows_S, : num_blocks + _SPARE_BLOCKS]


class BatchMaker:
    """Makes the batch of each step from the rows of its sequences."""

    def __init__(self, rows: SequenceRows, block_size: int) -> None:
        self._rows = rows
        self._block_size = block_size
        self._decode: _DecodeBatch | None = None

    def make(self, step: StepInput) -> Batch | None:
        """Return the batch of a step that the rows have applied; ``None``: it is empty."""
        if max(step.num_tokens, default=0) != 1:
            self._decode = None
            return self._mixed(step) if step.sequence_ids else None
        decode = self._decode
        if decode is None or step.added or step.removed or step.sequence_ids != decode.ids:
            decode = self._decode = _DecodeBatch(list(step.sequence_ids), self._rows)
        else:
            decode.edit(step)
        return self._decoding(decode)

    def _decoding(self, decode: _DecodeBatch) -> Batch:
        """Return a batch of one token each."""
        rows, size = self._rows, self._block_size
        rows_S = decode.rows_S
        computed_S = rows.num_computed_C[rows_S]
        lengths_S = (computed_S + 1).astype(np.int32)
        max_seq_len = int(lengths_S.max())
        decode.reach(-(-max_seq_len // size))
        blocks_S, offsets_S = np.divmod(computed_S, size)
        slots_S = decode.tables_SW[decode.owner_S, blocks_S] * np.int64(size) + offsets_S
        return Batch(
            sequences=decode.sequences,
            rows_S=rows_S,
            tenants_S=decode.tenants_S,
            counts_S=decode.ones_S,
            computed_S=computed_S,
            last_S=decode.owner_S,
            complete_S=lengths_S == rows.num_tokens_C[rows_S],
            unknown_S=rows.num_unknown_C[rows_S] > 0,
            tokens_T=rows.next_token_C[rows_S],
            positions_T=computed_S,
            slots_T=slots_S,
            starts=decode.starts,
            lengths_S=lengths_S,
            tables_SW=decode.tables_SW,
            max_query_len=1,
            max_seq_len=max_seq_len,
        )

    def _mixed(self, step: StepInput) -> Batch:
        """Return a batch of any number of tokens each."""
        rows, size = self._rows, self._block_size
        sequences = rows.of(step.sequence_ids)
        count = len(sequences)
        rows_S = np.fromiter((sequence.row for sequence in sequences), np.int64, count)
        counts_S = np.asarray(step.num_tokens, np.int64)
        computed_S = rows.num_computed_C[rows_S]
        lengths_S = (computed_S + counts_S).astype(np.int32)
        starts = np.zeros(count + 1, np.int32)
        np.cumsum(counts_S, out=starts[1:])
        max_seq_len = int(lengths_S.max())
        tables_SW = rows.tables_CW[rows_S, : -(-max_seq_len // size)]
        owner_T = np.repeat(np.arange(count), counts_S)
        positions_T = np.arange(len(owner_T)) - (starts[:-1] - computed_S)[owner_T]
        tokens_T = rows.next_token_C[rows_S][owner_T]
        for place in np.flatnonzero(counts_S > 1).tolist():
            begin, end = int(computed_S[place]), int(lengths_S[place])
            tokens_T[starts[place] : starts[place + 1]] = sequences[place].tokens[begin:end]
        blocks_T, offsets_T = np.divmod(positions_T, size)
        slots_T = tables_SW[owner_T, blocks_T] * np.int64(size) + offsets_T
        return Batch(
            sequences=sequences,
            rows_S=rows_S,
            tenants_S=rows.tenant_C[rows_S],
            counts_S=counts_S,
            computed_S=computed_S,
            last_S=starts[1:].astype(np.int64) - 1,
            complete_S=lengths_S == rows.num_tokens_C[rows_S],
            unknown_S=rows.num_unknown_C[rows_S] > 0,
            tokens_T=tokens_T,
            positions_T=positions_T,
            slots_T=slots_T,
            starts=starts,
            lengths_S=lengths_S,
            tables_SW=tables_SW,
            max_query_len=int(counts_S.max()),
            max_seq_len=max_seq_len,
        )
