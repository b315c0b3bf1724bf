"""State machines that compare a block allocator with an independent model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paged_core.block_key import BlockKey
from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.allocator import BlockAllocator, SupportsPrefixCache

Content = tuple[object, tuple[tuple[int, ...], ...]]
"""Extra key, and the tokens of every block up to and including this one."""


class AllocatorMachine(RuleBasedStateMachine):
    """Blocks are allocated, shared and freed; the model counts references."""

    capacity = 8

    def __init__(self, make: Callable[[int], BlockAllocator], block_size: int) -> None:
        super().__init__()
        self.real = make(self.capacity)
        self.block_size = block_size
        self.references: Counter[BlockId] = Counter()

    @property
    def used(self) -> list[BlockId]:
        return sorted(block for block, count in self.references.items() if count)

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        free = self.capacity - len(self.used)
        if count > free:
            before = self.findings()
            with pytest.raises(OutOfBlocks):
                self.real.allocate(count)
            assert self.real.num_free == free, "an allocation that failed took blocks"
            assert self.findings() == before, "an allocation that failed lost cached blocks"
            return
        taken = self.real.allocate(count)
        assert len(taken) == count, "it allocated another number of blocks than asked for"
        assert len(set(taken)) == count, "it allocated a block twice"
        assert not set(taken) & set(self.used), "it allocated a block that is in use"
        assert set(taken) <= set(range(self.capacity)), "it allocated a block that does not exist"
        for block in taken:
            self.forget(block)
            self.references[block] = 1

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.shareable()), max_size=3, unique=True))
        self.real.share(blocks)
        self.references.update(blocks)

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.used), max_size=3, unique=True))
        self.real.free(blocks)
        self.references.subtract(blocks)

    @invariant()
    def conserves_blocks(self) -> None:
        assert self.real.num_free + len(self.used) == self.capacity, "blocks were lost or added"
        for block in range(self.capacity):
            assert self.real.ref_count(BlockId(block)) == self.references[BlockId(block)]

    def teardown(self) -> None:
        for block in self.used:
            self.real.free([block] * self.references[block])
        assert self.real.num_free == self.capacity
        assert sorted(self.real.allocate(self.capacity)) == list(range(self.capacity))

    def shareable(self) -> list[BlockId]:
        """Blocks that may be referenced once more."""
        return self.used

    def forget(self, block: BlockId) -> None:
        """The block was allocated, so its old content is gone."""

    def findings(self) -> object:
        """All cached content that the allocator finds."""
        return None


class PrefixCacheMachine(AllocatorMachine):
    """Blocks are also published, looked up, retracted and evicted.

    The model knows the content of every block, in the order of publication. It does not predict
    what is evicted; it learns it when a block is allocated.
    """

    def __init__(self, make: Callable[[int], BlockAllocator], block_size: int) -> None:
        super().__init__(make, block_size)
        self.cache = cast("SupportsPrefixCache", self.real)
        self.published: dict[BlockId, Content] = {}

    def chains(self) -> st.SearchStrategy[Content]:
        """Contents over a tiny alphabet, so that they are often equal."""
        tokens = st.lists(st.integers(0, 1), min_size=self.block_size, max_size=self.block_size)
        blocks = st.lists(tokens.map(tuple), min_size=1, max_size=3).map(tuple)
        return st.tuples(st.sampled_from([None, None, "salt"]), blocks)

    @precondition(lambda self: any(block not in self.published for block in self.used))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        mine = [block for block in self.used if block not in self.published]
        block = data.draw(st.sampled_from(mine))
        content = data.draw(self.chains())
        equal = [other for other, held in self.published.items() if held == content]
        held = self.cache.publish(block, _keys(content)[-1])
        if held == block:
            self.published[block] = content
            return
        assert held in equal, f"block {block} was merged into {held}, which has other content"
        self.references[held] += 1
        self.references[block] -= 1

    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        if not self.published:
            return
        known = st.lists(st.sampled_from(sorted(self.published)), max_size=3, unique=True)
        blocks = data.draw(known)
        self.cache.retract(blocks)
        for block in blocks:
            del self.published[block]

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        content = data.draw(self.chains())
        before = self.real.num_free
        found = self.cache.look_up(_keys(content))
        assert found == self.expected(content), (
            "it did not find the blocks that were published first and still exist"
        )
        assert self.real.num_free == before, "a look-up changed the number of free blocks"

    @invariant()
    def finds_all_that_was_published(self) -> None:
        for content in set(self.published.values()):
            if len(content[1]) == 1:
                assert self.cache.look_up(_keys(content)) == self.expected(content)

    def expected(self, content: Content) -> list[BlockId]:
        found: list[BlockId] = []
        extra, chain = content
        for length in range(1, len(chain) + 1):
            wanted = extra, chain[:length]
            first = next((b for b, held in self.published.items() if held == wanted), None)
            if first is None:
                break
            found.append(first)
        return found

    def shareable(self) -> list[BlockId]:
        return sorted({*self.used, *self.published})

    def forget(self, block: BlockId) -> None:
        self.published.pop(block, None)

    def findings(self) -> object:
        contents = sorted(set(self.published.values()), key=repr)
        return [self.cache.look_up(_keys(content)) for content in contents]


def _keys(content: Content) -> list[BlockKey]:
    extra, chain = content
    keys: list[BlockKey] = []
    for tokens in chain:
        keys.append(BlockKey(keys[-1] if keys else None, tokens, extra))
    return keys
