"""What an evictor must do, and a model that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paged_core.errors import OutOfBlocks
from paged_core.interfaces.evictor import BlockInfo, Evictor, EvictorParts
from paged_core.sequence import BlockId
from paged_core.testing.component_conformance import ServesEveryWorkload
from paged_core.testing.evictor_cost import evictor_cost
from paged_core.testing.work import Watched


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
        """Return the block that must go first; ``None``: nothing is said of it.

        Args:
            held: never empty, in the order of arrival: by departure, and in each departure the
                longest prefix first.
        """
        return None

    def make(self, num_blocks: int = 16) -> Evictor:
        """A fresh evictor for this many blocks."""
        made = self.build(EvictorParts(num_blocks=num_blocks, block_size=4, seed=0))
        assert isinstance(made, Evictor)
        return made

    def test_is_empty_at_first(self) -> None:
        evictor = self.make()
        assert len(evictor) == 0
        with pytest.raises(OutOfBlocks):
            evictor.evict()

    def test_gives_up_what_it_was_given(self) -> None:
        evictor = self.make()
        evictor.add(BlockId(3), BlockInfo(4, 0, 1))
        assert len(evictor) == 1
        assert evictor.evict() == 3
        assert len(evictor) == 0

    def test_does_not_let_go_of_what_it_does_not_hold(self) -> None:
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

    def test_no_operation_runs_more_instructions_than_a_logarithm(self) -> None:
        self._check_cost(int, "instructions")

    def test_no_operation_compares_more_than_a_logarithm(self) -> None:
        """Inside built-ins, where instructions are not seen."""
        self._check_cost(Watched, "comparisons")

    def _check_cost(self, number: type[int], what: str) -> None:
        """Eight times the blocks may cost twice as much, which leaves a margin."""
        small, large = (evictor_cost(self.make, size, number) for size in (64, 512))
        assert large <= 2 * small + 8, (
            f"a block that leaves, comes back and goes takes {small:.0f} {what} among 64 blocks, "
            f"{large:.0f} among 512; they may grow as the logarithm does"
        )

    def test_behaves_like_the_model(self) -> None:
        make, expected = self.make, self.expected
        self.check_machine(lambda: EvictorMachine(make, expected))


class EvictorMachine(RuleBasedStateMachine):
    """Requests leave and come back, blocks are given up; the model is the list of what is held."""

    num_blocks = 10

    def __init__(
        self,
        make: Callable[[int], Evictor],
        expected: Callable[[Sequence[IdleBlock]], BlockId | None],
    ) -> None:
        super().__init__()
        self.real, self.twin = make(self.num_blocks), make(self.num_blocks)
        self.expected = expected
        self.held: list[IdleBlock] = []
        self.departures = 0
        self.publications = 0

    @rule(
        blocks=st.lists(st.integers(0, 9), max_size=4, unique=True),
        hits=st.lists(st.integers(0, 3), min_size=4, max_size=4),
        shortest=st.integers(1, 3),
    )
    def leave(self, blocks: list[int], hits: list[int], shortest: int) -> None:
        """A request leaves its blocks, the last one, which ends the longest prefix, first."""
        known = {idle.block for idle in self.held}
        leaving = [BlockId(block) for block in blocks if block not in known]
        self.departures += 1
        for place, block in enumerate(leaving):
            num_tokens = 4 * (shortest + len(leaving) - 1 - place)
            self.publications += 1
            info = BlockInfo(num_tokens, hits[place], self.departures, self.publications)
            self.real.add(block, info)
            self.twin.add(block, info)
            self.held.append(IdleBlock(block, info))

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A block is used again."""
        if self.held:
            idle = data.draw(st.sampled_from(self.held))
            self.real.remove(idle.block)
            self.twin.remove(idle.block)
            self.held.remove(idle)

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
        block = self.real.evict()
        gone = [idle for idle in self.held if idle.block == block]
        assert gone, f"gave up block {block}, which it does not hold"
        assert wanted is None or block == wanted, (
            f"gave up {gone[0]}, but it is block {wanted} that has to go first of {self.held}"
        )
        self.held.remove(gone[0])
        assert self.twin.evict() == block, (
            "another one of the same seed, told the same, gives up another block: runs cannot be "
            "repeated"
        )

    @invariant()
    def counts_what_it_holds(self) -> None:
        assert len(self.real) == len(self.held)

    def teardown(self) -> None:
        """In the end everything it holds can be had, each block once."""
        left = {self.real.evict() for _ in range(len(self.real))}
        assert left == {idle.block for idle in self.held}
        assert len(self.real) == 0
