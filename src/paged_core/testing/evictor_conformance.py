"""What an evictor must do, with a state machine that compares it with a model."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor, EvictorParts
from paged_core.interfaces.future import Future
from paged_core.testing.component_conformance import ServesEveryWorkload
from paged_core.testing.evictor_cost import evictor_cost
from paged_core.testing.work import Watched

CONTENTS = (*range(8), None)
"""Content keys that the model uses; ``None``: the allocator gives no key."""


def other_key(content_key: int) -> int:
    """Another key for the same content: neither the order nor the low digits of keys matter."""
    return -(content_key + 1) << 40


@dataclass(frozen=True)
class IdleBlock:
    """A block that the evictor under test holds."""

    block: BlockId
    info: BlockInfo


class EvictorConformance(ServesEveryWorkload):
    """Subclass it for an evictor. State the exact order by overriding :meth:`expected`::

    class TestMru(EvictorConformance):
        component = "mru"

        def expected(self, held):
            return held[-1].block
    """

    slot: ClassVar[str] = "evictor"
    max_examples = 40

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        """Return the block that must be evicted first; ``None``: not specified.

        Args:
            held: never empty, in the order in which blocks were added: by the request that left
                them, and of each request the longest prefix first.
        """
        return None

    def make(self, num_blocks: int = 16) -> Evictor:
        """A fresh evictor for this many blocks; an evictor for replays gets an empty future."""
        return self.make_foreseeing(Future(), num_blocks)

    def make_foreseeing(self, future: Future, num_blocks: int = 16) -> Evictor:
        """A fresh evictor; one for replays gets this future."""
        parts = EvictorParts(num_blocks=num_blocks, block_size=4, seed=0, future=future)
        made = self.build(parts)
        assert isinstance(made, Evictor)
        return made

    def test_is_empty_at_first(self) -> None:
        evictor = self.make()
        assert len(evictor) == 0
        with pytest.raises(OutOfBlocks):
            evictor.evict()

    def test_evicts_the_only_block(self) -> None:
        evictor = self.make()
        evictor.add(BlockId(3), BlockInfo(4, 0, 1))
        assert len(evictor) == 1
        assert evictor.evict() == 3
        assert len(evictor) == 0

    def test_removing_a_block_that_it_does_not_hold_raises(self) -> None:
        evictor = self.make()
        evictor.add(BlockId(1), BlockInfo(4, 0, 1))
        with pytest.raises(KeyError):
            evictor.remove(BlockId(2))
        assert len(evictor) == 1
        evictor.remove(BlockId(1))
        with pytest.raises(KeyError):
            evictor.remove(BlockId(1))
        assert len(evictor) == 0

    def test_two_evictors_share_nothing(self) -> None:
        one, other = self.make(), self.make()
        one.add(BlockId(1), BlockInfo(4, 0, 1))
        assert len(other) == 0

    def test_instructions_grow_no_faster_than_a_logarithm(self) -> None:
        self._check_cost(int, "instructions")

    def test_comparisons_grow_no_faster_than_a_logarithm(self) -> None:
        """Covers built-ins, whose instructions are not counted."""
        self._check_cost(Watched, "comparisons")

    def _check_cost(self, number: type[int], what: str) -> None:
        """Eight times the blocks may cost twice as much, which leaves a margin."""
        small, large = (evictor_cost(self.make, size, number) for size in (64, 512))
        assert large <= 2 * small + 8, (
            f"removing, adding and evicting a block takes {small:.0f} {what} among 64 blocks, "
            f"{large:.0f} among 512; it may grow no faster than the logarithm"
        )

    def test_its_memory_does_not_grow_with_the_number_of_evictions(self) -> None:
        evictor, clock = self.make(16), count(1)

        def add(block: BlockId, num_hits: int) -> None:
            now = next(clock)
            content_key = hash((now, num_hits))
            evictor.add(block, BlockInfo(4, num_hits, now, now, content_key, now))

        def replace_many(times: int) -> None:
            for number in range(times):
                add(evictor.evict(), 0)
                used = BlockId(number % 16)
                evictor.remove(used)
                add(used, 1)

        for block in range(16):
            add(BlockId(block), 0)
        replace_many(500)
        tracemalloc.start()
        try:
            replace_many(3000)
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert grown < 60_000, (
            f"3000 evictions among 16 blocks left {grown} bytes allocated; what is kept about "
            "evicted content must be bounded by the number of blocks"
        )

    def test_behaves_like_the_model(self) -> None:
        make, expected = self.make, self.expected
        self.check_machine(lambda: EvictorMachine(make, expected))


class EvictorMachine(RuleBasedStateMachine):
    """Blocks become idle, are used again and are evicted; the model is the list of idle blocks."""

    num_blocks = 10

    def __init__(
        self,
        make: Callable[[int], Evictor],
        expected: Callable[[Sequence[IdleBlock]], BlockId | None],
    ) -> None:
        super().__init__()
        self.real, self.twin, self.renamed = (make(self.num_blocks) for _ in range(3))
        self.expected = expected
        self.held: list[IdleBlock] = []
        self.used: dict[BlockId, BlockInfo] = {}
        self.departures = 0
        self.publications = 0

    @rule(
        blocks=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
        contents=st.lists(st.sampled_from(CONTENTS), min_size=4, max_size=4),
        hits=st.lists(st.integers(0, 3), min_size=4, max_size=4),
        shortest=st.integers(1, 3),
        steps_ago=st.sampled_from([0, 0, 1, 3, 6]),
    )
    def leave(
        self,
        blocks: list[int],
        contents: list[int | None],
        hits: list[int],
        shortest: int,
        steps_ago: int,
    ) -> None:
        """A request frees its blocks, the last one, which ends the longest prefix, first."""
        known = {idle.block for idle in self.held}
        leaving = [BlockId(block) for block in blocks if block not in known]
        self.departures += 1
        for place, block in enumerate(leaving):
            num_tokens = 4 * (shortest + len(leaving) - 1 - place)
            self.publications += 1
            info = BlockInfo(
                num_tokens,
                hits[place],
                self.departures,
                self.publications,
                contents[place],
                self.departures - steps_ago,
            )
            if block in self.used:
                was = self.used.pop(block)
                info = replace(
                    info,
                    num_hits=was.num_hits + 1 + hits[place],
                    published=was.published,
                    content_key=was.content_key,
                )
            self.add(IdleBlock(block, info))

    def add(self, idle: IdleBlock) -> None:
        block, info = idle.block, idle.info
        self.real.add(block, info)
        self.twin.add(block, info)
        if info.content_key is not None:
            info = replace(info, content_key=other_key(info.content_key))
        self.renamed.add(block, info)
        self.held.append(idle)

    @rule(data=st.data(), is_forgotten=st.booleans())
    def come_back(self, data: st.DataObject, is_forgotten: bool) -> None:
        """A block is used again for its content, or it is retracted because it was never computed.

        A retracted block (``is_forgotten``) is added later with other content.
        """
        if self.held:
            idle = data.draw(st.sampled_from(self.held))
            for evictor in (self.real, self.twin, self.renamed):
                evictor.remove(idle.block)
            self.held.remove(idle)
            if not is_forgotten:
                self.used[idle.block] = idle.info

    @rule(block=st.integers(0, 9))
    def remove_what_is_not_there(self, block: int) -> None:
        if all(idle.block != block for idle in self.held):
            with pytest.raises(KeyError):
                self.real.remove(BlockId(block))

    @rule()
    def evict(self) -> None:
        if not self.held:
            with pytest.raises(OutOfBlocks):
                self.real.evict()
            return
        wanted = self.expected(tuple(self.held))
        block, of_twin, of_renamed = (e.evict() for e in (self.real, self.twin, self.renamed))
        held, gone = self.held, [idle for idle in self.held if idle.block == block]
        self.held = [idle for idle in held if idle.block != block]
        assert gone, f"evicted block {block}, which it does not hold"
        assert wanted is None or block == wanted, (
            f"evicted {gone[0]}, but block {wanted} must be evicted first of {held}"
        )
        assert of_twin == block, (
            "a second evictor with the same seed and the same calls evicts another block: runs "
            "cannot be repeated"
        )
        assert of_renamed == block, (
            "a second evictor with the same calls but other content keys evicts another block: "
            "content keys may only be compared for equality"
        )

    @invariant()
    def counts_what_it_holds(self) -> None:
        assert len(self.real) == len(self.held)

    def teardown(self) -> None:
        """At the end, every block can be evicted, once and in the expected order."""
        while self.held:
            self.evict()
        assert len(self.real) == 0
