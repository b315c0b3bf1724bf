"""The list of free blocks against a model, with evictors that are right, wrong and raising."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from paged_core.engine.contexts import EvictorContext
from paged_core.errors import OutOfBlocks, PluginError
from paged_core.interfaces.evictor import Evictor
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry

from paged_core_vllm import cli
from paged_core_vllm.faults import Tally
from paged_core_vllm.free_list import FreeList
from vllm_doubles import FakeBlock, FakePool

NUM_BLOCKS = 9
EVICTORS = tuple(
    name
    for slot, name, problem in cli.components(Registry.discover())
    if slot == "evictor" and problem is None
)


def make(name: str) -> Any:
    registry = Registry.discover()
    context = EvictorContext(num_blocks=NUM_BLOCKS, block_size=4, seed=0)
    return make_component(registry, "evictor", registry.get("evictor", name).settings(), context)


class Faulty(Evictor):
    """Raises, or answers wrongly, in every so many calls."""

    def __init__(self, every: int) -> None:
        self._inner, self._every, self._calls = make("lru"), every, 0

    def _may_fail(self) -> None:
        self._calls += 1
        if self._calls % self._every == 0:
            raise RuntimeError("out of order")

    def add(self, block: Any, info: Any, /) -> None:
        self._may_fail()
        self._inner.add(block, info)

    def remove(self, block: Any, /) -> None:
        self._inner.remove(block)
        self._may_fail()

    def evict(self) -> Any:
        self._may_fail()
        return NUM_BLOCKS + 7 if self._calls % 5 == 0 else self._inner.evict()

    def __len__(self) -> int:
        return len(self._inner)


class Blocks(RuleBasedStateMachine):
    """Requests take blocks, publish some, find others' and give them back."""

    @initialize(name=st.sampled_from((*EVICTORS, "faulty")), every=st.integers(1, 6))
    def start(self, name: str, every: int) -> None:
        self.name, self.pool, self.tally = name, FakePool(NUM_BLOCKS), Tally()
        self.evictor = Faulty(every) if name == "faulty" else make(name)
        self.list = FreeList(self.pool, self.evictor, self.tally)
        self.empty, self.cached = list(range(NUM_BLOCKS)), []
        self.held: list[list[FakeBlock]] = []
        self.number = 0

    @rule(count=st.integers(0, NUM_BLOCKS + 1), published=st.integers(0, NUM_BLOCKS))
    def take(self, count: int, published: int) -> None:
        if count > len(self.empty) + len(self.cached):
            with pytest.raises(OutOfBlocks):
                self.list.popleft_n(count)
            return
        taken = self.list.popleft_n(count)
        for block in taken:
            expected = self.empty.pop(0) if self.empty else None
            if expected is not None:
                assert block.block_id == expected
            else:
                if self.name == "lru":
                    assert block.block_id == self.cached[0]
                self.cached.remove(block.block_id)
            block.block_hash = None
        self.number += 1
        self.pool.cache_full_blocks(self.number, taken, 0, published)
        self.held.append(taken)

    @rule(place=st.integers(0, 20))
    def give_back(self, place: int) -> None:
        if self.held:
            blocks = self.held.pop(place % len(self.held))
            first = [block for block in blocks if block.block_hash is None]
            last = [block for block in reversed(blocks) if block.block_hash is not None]
            self.list.prepend_n(first)
            self.list.append_n(last)
            self.empty[:0] = [block.block_id for block in first]
            self.cached += [block.block_id for block in last]

    @rule(place=st.integers(0, 20))
    def find(self, place: int) -> None:
        if self.cached:
            block = self.pool.blocks[self.cached.pop(place % len(self.cached))]
            self.pool.touch([block])
            self.list.remove(block)
            self.held.append([block])

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        if hasattr(self, "list"):
            free = [block.block_id for block in self.list.get_all_free_blocks()]
            assert free == self.empty + self.cached
            assert self.list.num_free_blocks == len(free)
            assert self.name == "faulty" or self.tally.evictor.faults == 0
            assert self.name == "faulty" or len(self.evictor) == len(self.cached)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def filled(evictor: Any, tally: Tally) -> tuple[FreeList, FakePool]:
    """A list of three cached blocks; block 0, given back first, was found by a second request."""
    pool = FakePool(3)
    made = FreeList(pool, evictor, tally)
    blocks = made.popleft_n(3)
    pool.cache_full_blocks("r", blocks, 0, 3)
    pool.touch([blocks[0]])
    for block in blocks:
        made.append(block)
    return made, pool


def test_an_evictor_learns_of_hits_and_where_it_differs_is_counted() -> None:
    tally = Tally()
    made, _ = filled(make("lfu"), tally)
    assert made.popleft().block_id == 1
    count = tally.evictor
    assert (count.decisions, count.choices, count.differed) == (1, 1, 1)


def test_a_strict_list_raises_before_a_block_is_lost() -> None:
    made, _ = filled(make("lru"), Tally(strict=True))
    made._evictor = Faulty(1)
    with pytest.raises(PluginError, match=r"Faulty.*out of order"):
        made.popleft()
    assert made.num_free_blocks == len(made.get_all_free_blocks()) == 3


def test_a_connector_that_walks_the_list_is_refused() -> None:
    made, _ = filled(make("lru"), Tally())
    with pytest.raises(NotImplementedError, match="evictor: lru"):
        made.iter_blocks_after(None)
