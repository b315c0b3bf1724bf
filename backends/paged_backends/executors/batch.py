"""One step's work as arrays, and a sequence as an executor knows it.

Shapes: T tokens of S sequences in the batch, W blocks per sequence.
"""

# ruff: noqa: N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.grammar.masks import SequenceGrammar
from paged_backends.sampling import Row
from paged_core.interfaces.attention import AttentionBatch
from paged_core.step import NewSequence


class KnownSequence:
    """A sequence: its row in the arrays, its tokens, and how it is sampled.

    Only :class:`~paged_backends.executors.sequence_rows.SequenceRows` changes one.
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
