"""What an executor knows of the sequences: a row of flat arrays for each.

A step over many sequences that each compute one token is a handful of array operations, whatever
their number; Python looks at single sequences only when they come, go, or get a block.

Shapes: C rows there are, W blocks per row, S sequences of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paged_backends.sampling import Row
from paged_core.ids import BlockId, SeqId
from paged_core.step import NewSequence

_FIRST_ROWS = 16
_FIRST_BLOCKS = 16


class KnownSequence:
    """One sequence: its row, its tokens, and how it draws."""

    __slots__ = ("draw", "fan_out", "id", "num_candidates", "prompt_logprobs", "row", "tokens")

    def __init__(self, new: NewSequence, row: int) -> None:
        self.id = new.id
        self.row = row
        self.tokens = list(new.tokens)
        self.fan_out = new.fan_out
        self.num_candidates = new.num_candidates
        self.prompt_logprobs = new.sampling.prompt_logprobs
        self.draw = Row(
            sampling=new.sampling,
            tokens=self.tokens,
            num_prompt_tokens=new.num_prompt_tokens,
            index=new.index,
            request_id=new.request_id,
        )

    def draws(self) -> list[Row]:
        """One row of the sampler per token to draw: several where the sequence fans out."""
        first = self.draw
        others = [
            Row(
                sampling=first.sampling,
                tokens=self.tokens,
                num_prompt_tokens=first.num_prompt_tokens,
                index=first.index + offset,
                request_id=first.request_id,
            )
            for offset in range(1, self.fan_out)
        ]
        return [first, *others]


class SequenceRows:
    """All sequences that the engine told of and has not taken back; fed by changes only."""

    def __init__(self, max_blocks: int) -> None:
        """``max_blocks``: blocks that the longest sequence takes; bounds the width of the rows."""
        self._max_blocks = max_blocks
        self._known: dict[SeqId, KnownSequence] = {}
        self._free = list(reversed(range(_FIRST_ROWS)))
        self.tables_CW: NDArray[np.int32] = np.zeros(
            (_FIRST_ROWS, min(_FIRST_BLOCKS, max_blocks)), np.int32
        )
        self.num_computed_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        self.num_tokens_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        self.next_token_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        """The first token that is not computed yet, where there is one."""
        self.special_C: NDArray[np.bool_] = np.zeros(_FIRST_ROWS, np.bool_)
        """Fans out, is one of several beams, or wants log-probabilities of its prompt."""
        self.plain_C: NDArray[np.bool_] = np.zeros(_FIRST_ROWS, np.bool_)
        """Takes the best token, and wants nothing else."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._known

    def of(self, ids: Sequence[SeqId]) -> list[KnownSequence]:
        """Return the sequences of a batch."""
        known = self._known
        return [known[seq_id] for seq_id in ids]

    def remove(self, ids: Sequence[SeqId]) -> None:
        """Forget these; one that is unknown came with a step that failed before it was learnt."""
        for seq_id in ids:
            known = self._known.pop(seq_id, None)
            if known is not None:
                self._free.append(known.row)

    def add(self, new: NewSequence) -> None:
        """Learn of a sequence."""
        self.remove([new.id])
        if not self._free:
            self._add_rows()
        self._widen(len(new.blocks))
        row = self._free.pop()
        known = self._known[new.id] = KnownSequence(new, row)
        self.tables_CW[row, : len(new.blocks)] = new.blocks
        self.tables_CW[row, len(new.blocks) :] = 0
        self.num_computed_C[row] = new.num_computed
        self.num_tokens_C[row] = len(new.tokens)
        if new.num_computed < len(new.tokens):
            self.next_token_C[row] = new.tokens[new.num_computed]
        self.special_C[row] = (
            known.fan_out > 1 or known.num_candidates > 0 or known.prompt_logprobs is not None
        )
        self.plain_C[row] = known.draw.plain and not self.special_C[row]

    def edit(self, ids: Sequence[SeqId], indices: Sequence[int], blocks: Sequence[BlockId]) -> None:
        """Change single entries of block tables, in this order."""
        if ids:
            self._widen(max(indices) + 1)
            known = self._known
            self.tables_CW[[known[seq_id].row for seq_id in ids], indices] = blocks

    def settle(self, known: KnownSequence) -> None:
        """Note the next token of a sequence that still has tokens to compute."""
        computed = int(self.num_computed_C[known.row])
        if computed < len(known.tokens):
            self.next_token_C[known.row] = known.tokens[computed]

    def _add_rows(self) -> None:
        count = len(self.num_computed_C)
        self._free.extend(reversed(range(count, 2 * count)))
        self.tables_CW = np.concatenate([self.tables_CW, np.zeros_like(self.tables_CW)])
        self.num_computed_C = np.concatenate([self.num_computed_C, np.zeros(count, np.int64)])
        self.num_tokens_C = np.concatenate([self.num_tokens_C, np.zeros(count, np.int64)])
        self.next_token_C = np.concatenate([self.next_token_C, np.zeros(count, np.int64)])
        self.special_C = np.concatenate([self.special_C, np.zeros(count, np.bool_)])
        self.plain_C = np.concatenate([self.plain_C, np.zeros(count, np.bool_)])

    def _widen(self, num_blocks: int) -> None:
        rows, width = self.tables_CW.shape
        if num_blocks > width:
            wider = max(num_blocks, min(2 * width, self._max_blocks))
            more = np.zeros((rows, wider - width), np.int32)
            self.tables_CW = np.concatenate([self.tables_CW, more], axis=1)
