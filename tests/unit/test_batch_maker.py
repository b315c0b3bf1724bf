"""Batches of sequences that decode together are what they would be if each were made anew."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from paged_backends.executors.batch import Batch, BatchMaker, SequenceRows
from paged_core.ids import BlockId, SeqId
from paged_core.sampling_params import SamplingParams
from paged_core.step import NewSequence, StepInput

SIZE = 4
ARRAYS = (
    *("rows_S", "generations_S", "counts_S", "computed_S", "last_S", "complete_S", "unknown_S"),
    *("tokens_T", "positions_T", "slots_T", "starts", "lengths_S"),
)


class Engine:
    """Sequences that come, go, grow, and have single blocks exchanged."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rows = SequenceRows(64)
        self.maker = BatchMaker(self.rows, SIZE)
        self.tables: dict[SeqId, list[BlockId]] = {}
        self.lengths: dict[SeqId, int] = {}
        self.number = 0

    def step(self) -> StepInput:
        """Plan a step, and let the rows know of it."""
        chance, changes = self.chance, dict[str, list[Any]]()
        if chance.random() < 0.2 or not self.tables:
            changes["added"] = [self._new()]
        if chance.random() < 0.1 and len(self.tables) > 2:
            gone = chance.choice(list(self.tables))
            del self.tables[gone], self.lengths[gone]
            changes["removed"] = [gone]
        batch = [] if chance.random() < 0.1 else list(self.tables)
        if chance.random() < 0.3:
            chance.shuffle(batch)
        for seq_id in batch:
            if self.lengths[seq_id] == len(self.tables[seq_id]) * SIZE:
                ahead = chance.choice(
                    [1, 1, 12]
                )  # some give out blocks long before they are needed
                for _ in range(ahead):
                    self._edit(changes, seq_id, len(self.tables[seq_id]))
        if chance.random() < 0.3:
            seq_id = chance.choice(list(self.tables))
            self._edit(changes, seq_id, chance.randrange(len(self.tables[seq_id])))
        step = StepInput(
            number=self.number, sequence_ids=batch, num_tokens=[1] * len(batch), **changes
        )
        self.rows.remove(step.removed)
        for new in step.added:
            self.rows.add(new)
        self.rows.edit(step.edit_ids, step.edit_indices, step.edit_blocks)
        return step

    def done(self, batch: Batch) -> None:
        """Draw the same token for every sequence."""
        count = len(batch.sequences)
        self.rows.advance(batch, np.arange(count), [self.number] * count)
        for known in batch.sequences:
            self.lengths[known.id] += 1

    def _new(self) -> NewSequence:
        self.number += 1
        seq_id, length = SeqId(self.number), self.chance.randint(1, 3 * SIZE)
        blocks = [self._block() for _ in range(-(-length // SIZE))]
        self.tables[seq_id], self.lengths[seq_id] = list(blocks), length - 1
        return NewSequence(
            id=seq_id,
            request_id=str(seq_id),
            tokens=[self.chance.randrange(100) for _ in range(length)],
            num_prompt_tokens=length,
            num_computed=length - 1,
            blocks=blocks,
            sampling=SamplingParams(),
        )

    def _edit(self, changes: dict[str, list[Any]], seq_id: SeqId, index: int) -> None:
        table, block = self.tables[seq_id], self._block()
        table[index:] = [block, *table[index + 1 :]]
        for key, value in (("ids", seq_id), ("indices", index), ("blocks", block)):
            changes.setdefault(f"edit_{key}", []).append(value)

    def _block(self) -> BlockId:
        return BlockId(self.chance.randrange(1000))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_is_what_would_be_made(seed: int) -> None:
    engine = Engine(seed)
    for _ in range(120):
        step = engine.step()
        kept = engine.maker.make(step)
        if not step.sequence_ids:
            assert kept is None
            continue
        assert kept is not None
        fresh = BatchMaker(engine.rows, SIZE)._mixed(step)
        assert kept.sequences == fresh.sequences
        for name in ARRAYS:
            one, other = getattr(kept, name), getattr(fresh, name)
            assert (one == other).all(), name
            assert one.dtype == other.dtype, name
        assert (kept.max_query_len, kept.max_seq_len) == (fresh.max_query_len, fresh.max_seq_len)
        for place, known in enumerate(kept.sequences):
            blocks = engine.tables[known.id][: -(-int(kept.lengths_S[place]) // SIZE)]
            assert kept.tables_SW[place, : len(blocks)].tolist() == blocks
        engine.done(kept)


@pytest.mark.parametrize("count", [1, 5])
def test_slots_beyond_32_bits(count: int) -> None:
    rows, seq_id, cached = SequenceRows(64), SeqId(0), 6 - count
    new = NewSequence(
        id=seq_id,
        request_id="far",
        tokens=list(range(6)),
        num_prompt_tokens=6,
        num_computed=cached,
        blocks=[BlockId(2**30), BlockId(2**30 + 7)],
        sampling=SamplingParams(),
    )
    rows.add(new)
    step = StepInput(number=0, sequence_ids=[seq_id], num_tokens=[count], added=[new])
    batch = BatchMaker(rows, SIZE).make(step)
    assert batch is not None
    wanted = [new.blocks[at // SIZE] * SIZE + at % SIZE for at in range(cached, 6)]
    assert batch.slots_T.tolist() == wanted
