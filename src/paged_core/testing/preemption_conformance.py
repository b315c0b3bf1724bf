"""What a preemption must do."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st

from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.interfaces.preemption import Preemption, PreemptionMode, PreemptionParts
from paged_core.request import Request
from paged_core.sequence import SequenceGroup
from paged_core.testing.component_conformance import ServesEveryWorkload
from paged_core.testing.fits_alone import check_serves_what_fits
from paged_core.testing.memory_engine import build_memory_engine, serve
from paged_core.testing.policy_subjects import (
    empty_cache,
    request_lists,
    running_groups,
    shares,
    waiting_groups,
)
from paged_core.testing.text_alone import check_served
from paged_core.testing.untouched import untouched
from paged_core.testing.workload import Workload, workloads


class PreemptionConformance(ServesEveryWorkload):
    """Subclass it for a preemption. State its mode by overriding :meth:`expected`::

    class TestAlwaysSwap(PreemptionConformance):
        component = "always_swap"

        def expected(self, group):
            return PreemptionMode.SWAP
    """

    slot: ClassVar[str] = "preemption"

    def expected(self, group: SequenceGroup, /) -> PreemptionMode | None:
        """Return how the group must be preempted; ``None``: any answer will do."""
        return None

    def make(self, block_size: int = 4) -> Preemption:
        """A fresh component."""
        made = self.build(PreemptionParts(block_size=block_size))
        assert isinstance(made, Preemption)
        return made

    def test_returns_a_mode_and_swaps_only_if_may_swap(self) -> None:
        def answers(requests: list[Request], computed: list[int]) -> None:
            preemption, twin = self.make(), self.make()
            for group in self._groups(requests, computed):
                with untouched([group]):
                    mode = preemption.mode(group)
                assert isinstance(mode, PreemptionMode)
                assert mode is not PreemptionMode.SWAP or preemption.may_swap, (
                    "it swaps, but may_swap is False, so there are no host blocks"
                )
                assert preemption.mode(group) is mode is twin.mode(group), (
                    "for the same group, it must return the same mode"
                )
                wanted = self.expected(group)
                assert wanted is None or mode is wanted

        self.check(answers, request_lists(), shares())

    def test_reserves_between_the_present_and_the_maximum_length(self) -> None:
        def reserves(requests: list[Request], computed: list[int], block_size: int) -> None:
            preemption, twin = self.make(block_size), self.make(block_size)
            for group in self._groups(requests, computed):
                with untouched([group]):
                    tokens = preemption.tokens_to_reserve(group)
                assert preemption.tokens_to_reserve(group) == tokens
                assert twin.tokens_to_reserve(group) == tokens, (
                    "for the same group, it must reserve the same number of tokens"
                )
                longest = max(len(sequence.tokens) for sequence in group.live)
                whole = -(-group.max_length // block_size) * block_size
                assert tokens is None or longest <= tokens <= whole, (
                    f"{tokens} tokens are reserved for a sequence that has {longest} and may grow "
                    f"to {group.max_length}"
                )

        self.check(reserves, request_lists(), shares(), st.integers(1, 8))

    def test_refuses_nothing_that_fits_alone(self) -> None:
        check_serves_what_fits(build_memory_engine(self.registry, preemption=self._table))

    def _groups(self, coming: list[Request], computed: list[int]) -> list[SequenceGroup]:
        """Some waiting groups, and the same requests running."""
        return [
            *waiting_groups(coming),
            *running_groups(empty_cache(self.registry), coming, computed),
        ]

    def test_serves_workloads_with_any_number_of_host_blocks(self) -> None:
        def serves(values: dict[str, Any], workload: Workload, num_host_blocks: int) -> None:
            recorder = _SwapRecorder()
            values = {**values, "num_host_blocks": num_host_blocks}
            engine = build_memory_engine(self.registry, observers=[recorder], **values)
            check_served(engine, workload, serve(engine, workload))
            assert not recorder.swapped or (self.make().may_swap and num_host_blocks)

        self.check(serves, self.engine_values(), workloads(), st.integers(0, 12), share=0.5)


class _SwapRecorder(Observer):
    def __init__(self) -> None:
        self.swapped = 0

    def on_step(self, step: StepRecord, /) -> None:
        self.swapped += len(step.swapped_out)
