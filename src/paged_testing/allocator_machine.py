"""State machines that take the actions of the models of block allocators in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from paged_core.interfaces.allocator import BlockAllocator
from paged_testing.allocator_model import AllocatorModel, Content, PrefixCacheModel


class AllocatorMachine(RuleBasedStateMachine):
    """Blocks are allocated, shared and freed."""

    kind: type[AllocatorModel] = AllocatorModel

    def __init__(self, make: Callable[[int], BlockAllocator], block_size: int) -> None:
        super().__init__()
        self.model = self.kind(make, block_size)

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        self.model.allocate(count)

    @precondition(lambda self: self.model.shareable)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        known = st.sampled_from(self.model.shareable)
        self.model.share(data.draw(st.lists(known, max_size=3, unique=True)))

    @precondition(lambda self: self.model.used)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        used = st.sampled_from(self.model.used)
        self.model.free(data.draw(st.lists(used, max_size=3, unique=True)))

    def teardown(self) -> None:
        self.model.finish()


class PrefixCacheMachine(AllocatorMachine):
    """Blocks are also published, looked up, retracted and evicted."""

    kind = PrefixCacheModel

    @property
    def _cache(self) -> PrefixCacheModel:
        return cast("PrefixCacheModel", self.model)

    def _contents(self) -> st.SearchStrategy[Content]:
        """Contents over a tiny alphabet, so that they are often equal."""
        size = self.model.block_size
        tokens = st.lists(st.integers(0, 1), min_size=size, max_size=size)
        blocks = st.lists(tokens.map(tuple), min_size=1, max_size=3).map(tuple)
        return st.tuples(st.sampled_from([None, None, "salt"]), blocks)

    @precondition(lambda self: self._cache.unpublished)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self._cache.unpublished))
        self._cache.publish(block, data.draw(self._contents()))

    @precondition(lambda self: self._cache.published)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        known = st.sampled_from(sorted(self._cache.published))
        self._cache.retract(data.draw(st.lists(known, max_size=3, unique=True)))

    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        self._cache.look_up(data.draw(self._contents()))
