"""What an evictor must do, with a state machine that compares it with a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from paged_core.ids import BlockId
from paged_core.interfaces.evictor import Evictor
from paged_testing.component_conformance import ServesEveryWorkload
from paged_testing.evictor_cases import EvictorCases
from paged_testing.evictor_model import CONTENTS, EvictorModel, IdleBlock, other_key

__all__ = ["EvictorConformance", "EvictorMachine", "IdleBlock", "other_key"]


class EvictorConformance(ServesEveryWorkload, EvictorCases):
    """Subclass it for an evictor. State the exact order by overriding :meth:`expected`::

    class TestMru(EvictorConformance):
        component = "mru"

        def expected(self, held):
            return held[-1].block
    """

    max_examples: ClassVar[int] = 40

    def test_behaves_like_the_model(self) -> None:
        make, expected = self.make, self.expected
        self.check_machine(lambda: EvictorMachine(make, expected))


class EvictorMachine(RuleBasedStateMachine):
    """The actions of the model, in any order."""

    def __init__(
        self,
        make: Callable[[int], Evictor],
        expected: Callable[[Sequence[IdleBlock]], BlockId | None],
    ) -> None:
        super().__init__()
        self.model = EvictorModel(make, expected)

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
        self.model.leave(blocks, contents, hits, shortest, steps_ago)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), is_forgotten=st.booleans())
    def come_back(self, data: st.DataObject, is_forgotten: bool) -> None:
        idle = data.draw(st.sampled_from(self.model.held))
        self.model.come_back(idle, is_forgotten=is_forgotten)

    @rule(block=st.integers(0, 9))
    def remove_what_is_not_there(self, block: int) -> None:
        self.model.remove_absent(block)

    @rule()
    def evict(self) -> None:
        self.model.evict()

    def teardown(self) -> None:
        self.model.finish()
