"""A KVCache under any sequence of operations, against a cache that is read and written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paged_core.cache.kv_cache import CacheChanges
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId, SeqId
from paged_core.sequence import SequenceGroup, SequenceState, Status
from properties.profile import Length, lengths, profile
from unit.block_tables import make_cache, make_group

BLOCK_SIZE = 3
NUM_BLOCKS = 7
NUM_HOST_BLOCKS = 5
TOKENS = st.sampled_from([0, 0, 0, 0, 1])
"""Nearly always the same, so that contents are often equal."""
PROMPTS = st.lists(TOKENS, min_size=1, max_size=8)


def _chunks(num_tokens: int) -> st.SearchStrategy[int]:
    """Mostly all of them."""
    return st.sampled_from([num_tokens, num_tokens, 1, -(-num_tokens // 2)])


@dataclass
class Step:
    """A step that was submitted."""

    changes: CacheChanges
    ends: list[tuple[SequenceState, int]]
    """Its sequences, and how many tokens of each are computed after it."""
    draws: list[SequenceState]
    groups: list[SequenceGroup]
    """All that end if it fails."""


class BlockTables(RuleBasedStateMachine):
    """Groups come, grow, fork, are preempted and leave; steps run or fail.

    The model is the memory of an executor, which is told of changes only. What every sequence reads
    back through the table that the executor has must be its tokens.

    With ``overlaps``, each step is planned while the one before it is in flight: the tokens that
    one draws are counted, and known to the model only.
    """

    allocator: dict[str, Any] = {}  # noqa: RUF012
    overlaps = False

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(
            NUM_BLOCKS, BLOCK_SIZE, num_host_blocks=NUM_HOST_BLOCKS, **self.allocator
        )
        self.waiting: list[SequenceGroup] = []
        self.running: list[SequenceGroup] = []
        self.swapped: list[SequenceGroup] = []
        self.plan: dict[SeqId, tuple[SequenceState, int]] = {}
        self.moved: list[SequenceGroup] = []
        self.depends_on_plan = False
        self.device = [[-1] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]
        self.host = [[-1] * BLOCK_SIZE for _ in range(NUM_HOST_BLOCKS)]
        self.tables: dict[SeqId, list[BlockId]] = {}
        self.next_id = 10**6
        self.in_flight: Step | None = None
        self.unknown: dict[SeqId, list[int]] = {}

    # ------------------------------------------------------------------ while a step is planned

    @initialize(prompts=st.lists(PROMPTS, min_size=2, max_size=3))
    def some_come(self, prompts: list[list[int]]) -> None:
        for prompt in prompts:
            self.comes(prompt, 2, None)

    @rule(
        prompt=PROMPTS,
        n=st.integers(1, 3),
        salt=st.sampled_from([None, None, "salt"]),
    )
    def comes(self, prompt: list[int], n: int, salt: str | None) -> None:
        if len(self.waiting) < 3:
            group = make_group(prompt, n, cache_salt=salt)
            self.waiting.append(group)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.waiting))
        if any(sequence.num_unknown for sequence in group.live):
            return
        hits = []
        for sequence in group.live:
            hit = self.cache.lookup(sequence, len(sequence.tokens) - 1)
            hits.append(hit)
        if len(group.live) > 1:
            needed = sum(self.cache.blocks_for(len(s.tokens)) for s in group.live)
            if needed > self.cache.num_free:
                return
        for sequence in group.live:
            hit = self.cache.lookup(sequence, len(sequence.tokens) - 1)
            skipped = len(hit.blocks) * BLOCK_SIZE
            count = data.draw(_chunks(len(sequence.tokens) - skipped))
            free = self.cache.num_free
            try:
                self.cache.admit(sequence, count, hit, skipped)
            except OutOfBlocks:
                assert self.cache.num_free == free
                assert not sequence.table.blocks
                assert len(group.live) == 1
                return
            assert sequence.num_scheduled == skipped
            self.plan[sequence.id] = sequence, count
            if hit.num_committed < len(hit.blocks):
                self.depends_on_plan = True
        self.waiting.remove(group)
        self.running.append(group)
        group.status = Status.RUNNING

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.running))
        self.grow_group(data, group)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def grow_all(self, data: st.DataObject) -> None:
        for group in self.running:
            self.grow_group(data, group)

    def grow_group(self, data: st.DataObject, group: SequenceGroup) -> None:
        for sequence in group.live:
            if sequence.id in self.plan or not sequence.num_pending or self.is_to_fork(group):
                continue
            count = data.draw(_chunks(sequence.num_pending))
            if sequence.num_scheduled + count >= sequence.capacity:
                before = self.cache.num_free, list(sequence.table.blocks)
                try:
                    self.cache.reserve(sequence, count)
                except OutOfBlocks:
                    assert (self.cache.num_free, sequence.table.blocks) == before
                    continue
            self.plan[sequence.id] = sequence, count

    @precondition(lambda self: self.running and not self.depends_on_plan)
    @rule(data=st.data(), swap=st.booleans())
    def preempt(self, data: st.DataObject, swap: bool) -> None:
        group = data.draw(st.sampled_from(self.running))
        if self.is_to_fork(group):
            return
        if swap:
            before = self.cache.num_free, self.cache.num_free_host
            try:
                self.cache.swap_out(group)
            except OutOfBlocks:
                assert (self.cache.num_free, self.cache.num_free_host) == before
                return
            self.swapped.append(group)
            self.moved.append(group)
            group.status = Status.SWAPPED
        else:
            self.cache.release_group(group)
            self.waiting.append(group)
            group.status = Status.WAITING
        self.running.remove(group)
        for sequence in group.live:
            self.plan.pop(sequence.id, None)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.swapped))
        if group in self.moved:
            return
        needed, free = self.cache.distinct_blocks(group), self.cache.num_free
        try:
            self.cache.swap_in(group)
        except OutOfBlocks:
            assert needed > free == self.cache.num_free
            return
        assert self.cache.num_free >= free - needed
        self.swapped.remove(group)
        self.running.append(group)
        group.status = Status.RUNNING

    # ------------------------------------------------------------------ between steps

    @precondition(lambda self: not self.plan and not self.cache.has_transfers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        groups = [*self.waiting, *self.running, *self.swapped]
        if not groups:
            return
        group = data.draw(st.sampled_from(groups))
        sequence = data.draw(st.sampled_from(group.live))
        self.end(group, sequence)

    @rule(data=st.data())
    def run_step(self, data: st.DataObject) -> None:
        done, self.in_flight = self.in_flight, self.submit(data)
        if not self.overlaps:
            done, self.in_flight = self.in_flight, None
        if done is not None:
            self.collect(data, done)
        self.check_conservation()

    @precondition(lambda self: self.plan or self.in_flight or self.cache.has_transfers)
    @rule(data=st.data(), executed=st.booleans())
    def fail_step(self, data: st.DataObject, executed: bool) -> None:
        steps = [self.submit(data, executed=executed)]
        if self.in_flight is not None:
            steps.insert(0, self.in_flight)
            self.in_flight = None
        for step in steps:
            self.cache.uncache(step.changes)
        for group in dict.fromkeys(group for step in steps for group in step.groups):
            for sequence in list(group.live):
                self.end(group, sequence)
        self.check_conservation()

    def submit(self, data: st.DataObject, *, executed: bool = True) -> Step:
        changes = self.cache.take_changes()
        if executed:
            self.apply(changes)
        planned = [sequence for sequence, _ in self.plan.values()]
        for sequence, count in self.plan.values():
            if executed:
                self.compute(sequence, count)
            sequence.num_scheduled += count
        draws = [sequence for sequence in planned if not sequence.num_pending]
        for sequence in draws:
            sequence.num_unknown += 1
            self.unknown.setdefault(sequence.id, []).append(data.draw(TOKENS))
        groups = [s.group for s in [*planned, *changes.added.values()] if s.group.live]
        groups += self.moved
        self.plan.clear()
        self.moved.clear()
        self.depends_on_plan = False
        return Step(changes, [(s, s.num_scheduled) for s in planned], draws, groups)

    def collect(self, data: st.DataObject, step: Step) -> None:
        for sequence, end in step.ends:
            sequence.num_computed = min(sequence.num_scheduled, end)  # less if it was released
        for sequence in step.draws:
            if sequence in sequence.group.live:
                self.draw(data, sequence)

    # ------------------------------------------------------------------ the model

    def is_to_fork(self, group: SequenceGroup) -> bool:
        """Return whether a step in flight draws the first tokens of several sequences."""
        return not group.forked and group.live[0].num_unknown > 0

    def text(self, sequence: SequenceState) -> list[int]:
        """All tokens, those that are not known yet included."""
        return [*sequence.tokens, *self.unknown.get(sequence.id, ())]

    def end(self, group: SequenceGroup, sequence: SequenceState) -> None:
        self.cache.release(sequence)
        group.live.remove(sequence)
        if not group.live:
            for queue in (self.waiting, self.running, self.swapped):
                if group in queue:
                    queue.remove(group)

    def apply(self, changes: CacheChanges) -> None:
        for seq_id in changes.removed:
            self.tables.pop(seq_id, None)
        for source, target in changes.swap_out:
            self.host[target] = list(self.device[source])
        for target, source in changes.swap_in.items():
            self.device[target] = list(self.host[source])
        read = {target: list(self.device[source]) for target, source in changes.copies.items()}
        for target, content in read.items():
            self.device[target] = content
        for sequence in changes.added.values():
            self.tables[sequence.id] = list(sequence.table.blocks)
        for seq_id, index, block in zip(
            changes.edit_ids, changes.edit_indices, changes.edit_blocks, strict=True
        ):
            table = self.tables[seq_id]
            table[index : index + 1] = [block]

    def compute(self, sequence: SequenceState, count: int) -> None:
        table, text = self.tables[sequence.id], self.text(sequence)
        for position in range(sequence.num_scheduled, sequence.num_scheduled + count):
            block = self.device[table[position // BLOCK_SIZE]]
            block[position % BLOCK_SIZE] = text[position]

    def draw(self, data: st.DataObject, sequence: SequenceState) -> None:
        group = sequence.group
        if not group.forked:
            for index in range(1, group.request.sampling.width):
                self.next_id += 1
                child = SequenceState(SeqId(self.next_id), group, index, list(sequence.tokens))
                self.cache.fork(sequence, child)
                child.tokens.append(data.draw(TOKENS))
                group.live.append(child)
            group.forked = True
        sequence.num_unknown -= 1
        sequence.tokens.append(self.unknown[sequence.id].pop(0))
        if len(sequence.tokens) > 14:
            self.end(group, sequence)

    @invariant()
    def every_sequence_reads_back_as_its_tokens(self) -> None:
        if self.plan or self.cache.has_transfers:
            return
        for group in self.running:
            for sequence in group.live:
                if sequence.id not in self.tables:
                    continue  # forked since the last step
                blocks = self.tables[sequence.id]
                held = [token for block in blocks for token in self.device[block]]
                end = sequence.num_scheduled
                assert held[:end] == self.text(sequence)[:end], sequence
                assert self.overlaps or sequence.num_computed == end

    def check_conservation(self) -> None:
        groups = [*self.waiting, *self.running, *self.swapped]
        device = {b for g in groups for s in g.live for b in s.table.blocks}
        host = {b for g in groups for s in g.live for b in s.table.host_blocks}
        assert self.cache.num_free == NUM_BLOCKS - len(device)
        assert self.cache.num_free_host == NUM_HOST_BLOCKS - len(host)
        for group in self.running:
            for sequence in group.live:
                if sequence.id in self.tables:
                    assert self.tables[sequence.id] == sequence.table.blocks

    def teardown(self) -> None:
        self.cache.take_changes()
        for group in [*self.waiting, *self.running, *self.swapped]:
            self.cache.release_group(group)
        assert self.cache.num_free == NUM_BLOCKS
        assert self.cache.num_free_host == NUM_HOST_BLOCKS


ALLOCATORS = pytest.mark.parametrize(
    "allocator",
    [
        {"allocator": "uncached"},
        {"allocator": "hash_cached"},
        {"allocator": "hash_cached", "merge_duplicates": True},
    ],
    ids=["uncached", "hash_cached", "merging"],
)


OVERLAPS = pytest.mark.parametrize("overlaps", [False, True], ids=["alone", "overlapping"])


@OVERLAPS
@ALLOCATORS
@lengths(30, 3000)
def test_tables_read_back_whatever_happens(
    length: Length, allocator: dict[str, Any], overlaps: bool
) -> None:
    machine = type("Machine", (BlockTables,), {"allocator": allocator, "overlaps": overlaps})
    steps = 60 if length.is_long else 50
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(profile(length.max_examples), stateful_step_count=steps),
    )
