"""The sequences that an executor knows, a row of flat arrays for each, and batches made of them.

A step over many sequences that each compute one token is a handful of array operations, whatever
their number; Python looks at single sequences only when they are added, removed, or get a block.
Sequences that decode together do so for many steps: what stays the same between two of them (the
sequences, their rows, their block tables but for single entries) is kept.

A sequence advances when its step is done (:meth:`SequenceRows.advance`), or, if the next step is to
be made before that, when its step is launched (:meth:`SequenceRows.expect`): the tokens that it
samples are then counted, and named later (:meth:`SequenceRows.learn`).

Shapes: C rows of the arrays, W blocks per row, T tokens of S sequences of a batch, R tokens sampled
for them.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.grammar.masks import SequenceGrammar
from paged_backends.sampling import Row
from paged_core.ids import BlockId, SeqId
from paged_core.interfaces.attention import AttentionBatch
from paged_core.step import NewSequence, StepInput

_FIRST_ROWS = 16
_FIRST_BLOCKS = 16
_SPARE_BLOCKS = 8
"""Columns that kept block tables have to spare, so that they are not widened for every block."""


class KnownSequence:
    """A sequence: its row in the arrays, its tokens, and how it is sampled.

    Only :class:`SequenceRows` changes one.
    """

    __slots__ = (
        *("asks_host", "fan_out", "id", "num_candidates", "prompt_logprobs"),
        *("row", "sampling", "tokens"),
    )

    def __init__(self, new: NewSequence, row: int) -> None:
        self.id = new.id
        self.row = row
        self.tokens = list(new.tokens)
        self.fan_out = new.fan_out
        self.num_candidates = new.num_candidates
        self.prompt_logprobs = new.sampling.prompt_logprobs
        form = new.sampling.structured_outputs
        self.sampling = Row(
            sampling=new.sampling,
            tokens=self.tokens,
            num_prompt_tokens=new.num_prompt_tokens,
            index=new.index,
            request_id=new.request_id,
            grammar=None
            if form is None
            else SequenceGrammar(form, new.sampling, self.tokens, new.num_prompt_tokens),
        )
        self.asks_host = bool(
            self.sampling.processed
            or new.sampling.min_tokens
            or new.sampling.needed_logprobs is not None
            or new.sampling.prompt_logprobs is not None
            or new.num_candidates
        )
        """Its tokens are always chosen on the host, which has to know all of them."""

    @property
    def needs_host(self) -> bool:
        """Its next token is chosen there."""
        return self.asks_host or self.fan_out > 1

    def fan_out_rows(self) -> list[Row]:
        """Return a row for each token to sample: several if the sequence fans out."""
        first = self.sampling
        others = range(first.index + 1, first.index + self.fan_out)
        return [first, *(replace(first, index=index) for index in others)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's work. Its arrays are never written again."""

    sequences: list[KnownSequence]
    rows_S: NDArray[np.int64]
    """The sequences' rows in the arrays of :class:`SequenceRows`."""
    generations_S: NDArray[np.int64]
    """Generations of these rows, see there."""
    counts_S: NDArray[np.int64]
    """Tokens to compute in this step."""
    computed_S: NDArray[np.int64]
    """Tokens computed before this step."""
    last_S: NDArray[np.int64]
    """Index in T of each sequence's last token of this step."""
    complete_S: NDArray[np.bool_]
    """True where this step computes the last token of the sequence, so that one is sampled."""
    unknown_S: NDArray[np.bool_]
    """True where the token to compute is sampled by a step in flight: it is on the device only."""
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


class SequenceRows:
    """All sequences that a step added and none has removed."""

    def __init__(self, max_blocks: int, num_device_rows: int = 0) -> None:
        """
        Args:
            max_blocks: blocks of the longest sequence; bounds the width of the block tables.
            num_device_rows: sequences in rows from here on cannot be sampled for on the device.
        """
        self._max_blocks = max_blocks
        self._num_device_rows = num_device_rows
        self._num_for_host = 0
        self._known: dict[SeqId, KnownSequence] = {}
        self._free = list(reversed(range(_FIRST_ROWS)))
        self.tables_CW: NDArray[np.int32] = np.zeros(
            (_FIRST_ROWS, min(_FIRST_BLOCKS, max_blocks)), np.int32
        )
        self.num_computed_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        self.num_tokens_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        self.next_token_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        """The first token that is not computed yet, if there is one."""
        self.special_C: NDArray[np.bool_] = np.zeros(_FIRST_ROWS, np.bool_)
        """Fans out, is a beam, or asks for log-probabilities of its prompt."""
        self.plain_C: NDArray[np.bool_] = np.zeros(_FIRST_ROWS, np.bool_)
        """Greedy, and asks for nothing but the token."""
        self.guided_C: NDArray[np.bool_] = np.zeros(_FIRST_ROWS, np.bool_)
        """Its output has a form, and so each of its tokens a mask."""
        self.num_unknown_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        """Tokens that are counted in ``num_tokens_C`` and not named yet."""
        self.generation_C: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        """Counts the sequences that had the row: a later one is not taken for an earlier one."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._known

    def of(self, ids: Sequence[SeqId]) -> list[KnownSequence]:
        """Return the sequences of a batch."""
        known = self._known
        return [known[seq_id] for seq_id in ids]

    def remove(self, ids: Sequence[SeqId]) -> None:
        """Forget these. An unknown one was added by a step that failed before it got here."""
        for seq_id in ids:
            known = self._known.pop(seq_id, None)
            if known is not None:
                self._num_for_host -= known.needs_host
                self._free.append(known.row)

    def need_host(self, ids: Sequence[SeqId]) -> bool:
        """Return True if the tokens of one of these cannot be sampled on the device."""
        known = self._known
        return self._num_for_host > 0 and any(known[seq_id].needs_host for seq_id in ids)

    def add(self, new: NewSequence) -> None:
        """Give a sequence a row; one of the same id is replaced."""
        self.remove([new.id])
        if not self._free:
            self._add_rows()
        self._widen(len(new.blocks))
        row = self._free.pop()
        known = self._known[new.id] = KnownSequence(new, row)
        known.asks_host |= row >= self._num_device_rows
        self._num_for_host += known.needs_host
        self.num_unknown_C[row] = 0
        self.generation_C[row] += 1
        self.tables_CW[row, : len(new.blocks)] = new.blocks
        self.tables_CW[row, len(new.blocks) :] = 0
        self.num_computed_C[row] = new.num_computed
        self.num_tokens_C[row] = len(new.tokens)
        if new.num_computed < len(new.tokens):
            self.next_token_C[row] = new.tokens[new.num_computed]
        self.special_C[row] = (
            known.fan_out > 1 or known.num_candidates > 0 or known.prompt_logprobs is not None
        )
        self.guided_C[row] = known.sampling.grammar is not None
        self.plain_C[row] = known.sampling.plain and not self.special_C[row]

    def edit(self, ids: Sequence[SeqId], indices: Sequence[int], blocks: Sequence[BlockId]) -> None:
        """Set single entries of block tables, in this order."""
        if ids:
            self._widen(max(indices) + 1)
            known = self._known
            self.tables_CW[[known[seq_id].row for seq_id in ids], indices] = blocks

    def advance(
        self,
        batch: Batch,
        places_R: NDArray[np.int64],
        token_ids: Sequence[int],
        failed: Collection[SeqId] = (),
    ) -> None:
        """Take over what a step computed and sampled: nothing else advances a sequence's state.

        Args:
            batch: the step's work, computed by now.
            places_R: place in the batch of each sampled token's sequence, rising. A sequence that
                fans out is repeated; the first of its tokens is appended to it.
            token_ids: the sampled tokens [R].
            failed: sequences that sampled nothing because their own code raised. A step that was
                submitted already may compute a token of theirs: it gets their last one again.
        """
        sequences = batch.sequences
        self._count_computed(batch)
        repeated_R = np.append(False, places_R[1:] == places_R[:-1])
        if repeated_R.any():
            for place in places_R[repeated_R].tolist():
                self._end_fan_out(sequences[place])
            own_R = np.flatnonzero(~repeated_R)
            places_R, token_ids = places_R[own_R], [token_ids[row] for row in own_R.tolist()]
        for place, token in zip(places_R.tolist(), token_ids, strict=True):
            sequences[place].tokens.append(token)
        rows_R = batch.rows_S[places_R]
        self.num_tokens_C[rows_R] += 1
        self.next_token_C[rows_R] = token_ids
        for sequence in [sequence for sequence in sequences if sequence.id in failed]:
            sequence.tokens.append(sequence.tokens[-1])
            self.num_tokens_C[sequence.row] += 1
            self.next_token_C[sequence.row] = sequence.tokens[-1]

    def expect(self, batch: Batch) -> None:
        """Count what a step that was launched computes, and a token for each complete sequence."""
        self._count_computed(batch)
        rows_R = batch.rows_S[batch.complete_S]
        self.num_tokens_C[rows_R] += 1
        self.num_unknown_C[rows_R] += 1

    def learn(self, batch: Batch, token_ids: Sequence[int]) -> None:
        """Name the tokens [R] that the step of ``batch`` sampled for its complete sequences."""
        places_R = np.flatnonzero(batch.complete_S)
        for place, token in zip(places_R.tolist(), token_ids, strict=True):
            batch.sequences[place].tokens.append(token)
        rows_R = batch.rows_S[places_R]
        held_R = self.generation_C[rows_R] == batch.generations_S[places_R]
        rows_R = rows_R[held_R]
        self.num_unknown_C[rows_R] -= 1
        newest_R = self.num_unknown_C[rows_R] == 0
        self.next_token_C[rows_R[newest_R]] = np.asarray(token_ids, np.int64)[held_R][newest_R]

    def _count_computed(self, batch: Batch) -> None:
        self.num_computed_C[batch.rows_S] += batch.counts_S
        for place in np.flatnonzero(~batch.complete_S).tolist():
            self._set_next_token(batch.sequences[place])

    def _set_next_token(self, sequence: KnownSequence) -> None:
        self.next_token_C[sequence.row] = sequence.tokens[int(self.num_computed_C[sequence.row])]

    def _end_fan_out(self, sequence: KnownSequence) -> None:
        if sequence.fan_out > 1:
            sequence.fan_out = 1
            self._num_for_host -= not sequence.needs_host
        self.special_C[sequence.row] = sequence.prompt_logprobs is not None

    def _add_rows(self) -> None:
        count = len(self.num_computed_C)
        self._free.extend(reversed(range(count, 2 * count)))
        for name, array in list(vars(self).items()):
            if name.endswith(("_C", "_CW")):
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))

    def _widen(self, num_blocks: int) -> None:
        rows, width = self.tables_CW.shape
        if num_blocks > width:
            wider = max(num_blocks, min(2 * width, self._max_blocks))
            more = np.zeros((rows, wider - width), np.int32)
            self.tables_CW = np.concatenate([self.tables_CW, more], axis=1)


class _DecodeBatch:
    """Sequences that decode one token each, step after step."""

    def __init__(self, ids: list[SeqId], rows: SequenceRows) -> None:
        count = len(ids)
        self.ids = ids
        self.sequences = rows.of(ids)
        self.rows_S = np.fromiter((sequence.row for sequence in self.sequences), np.int64, count)
        self.generations_S = rows.generation_C[self.rows_S]
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
            generations_S=decode.generations_S,
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
            generations_S=rows.generation_C[rows_S],
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
