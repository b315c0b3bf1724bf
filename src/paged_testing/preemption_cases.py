"""Written cases for preemptions: what wrong ones are known to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.interfaces.preemption import Preemption, PreemptionMode, PreemptionParts
from paged_core.request import Request
from paged_core.sequence import SequenceGroup
from paged_testing.component_conformance import ComponentConformance
from paged_testing.fits_alone import check_serves_what_fits
from paged_testing.memory_engine import build_memory_engine, serve
from paged_testing.policy_subjects import (
    WRITTEN_SHARES,
    empty_cache,
    running_groups,
    waiting_groups,
    written_requests,
)
from paged_testing.situations import SITUATIONS
from paged_testing.text_alone import check_served
from paged_testing.untouched import untouched
from paged_testing.workload import Workload


class PreemptionCases(ComponentConformance):
    """The cases of :class:`~paged_testing.PreemptionConformance`."""

    slot: ClassVar[str] = "preemption"

    def expected(self, group: SequenceGroup, /) -> PreemptionMode | None:
        """Return how the group must be preempted; ``None``: any answer will do."""
        return None

    def make(self, block_size: int = 4) -> Preemption:
        """A fresh component."""
        made = self.build(PreemptionParts(block_size=block_size))
        assert isinstance(made, Preemption)
        return made

    # ------------------------------------------------------------------ written cases

    def test_answers_for_written_requests(self) -> None:
        self.check_modes(written_requests(), WRITTEN_SHARES)
        self.check_modes(written_requests(), WRITTEN_SHARES[::-1])

    @pytest.mark.parametrize("block_size", [1, 3, 4, 16])
    def test_reserves_for_written_requests(self, block_size: int) -> None:
        self.check_reservations(written_requests(), WRITTEN_SHARES, block_size)

    def test_refuses_nothing_that_fits_alone(self) -> None:
        check_serves_what_fits(build_memory_engine(self.registry, preemption=self._table))

    @pytest.mark.parametrize("num_host_blocks", [0, 1, 3, 8, 40])
    def test_serves_with_so_many_host_blocks(self, num_host_blocks: int) -> None:
        for name in ("three requests grow until one is preempted", "two forked groups compete"):
            values = SITUATIONS[name].values({"preemption": self._table})
            self.check_swaps(values, SITUATIONS[name].workload, num_host_blocks)

    # ------------------------------------------------------------------ what is checked

    def check_modes(self, requests: Sequence[Request], computed: Sequence[int]) -> None:
        """Check that it returns modes that depend on the group alone."""
        preemption, twin = self.make(), self.make()
        groups = self._groups(requests, computed)
        twins = [twin.mode(group) for group in reversed(groups)][::-1]
        for group, of_twin in zip(groups, twins, strict=True):
            with untouched([group]):
                mode = preemption.mode(group)
            assert isinstance(mode, PreemptionMode), f"{mode!r} is no PreemptionMode"
            assert mode is not PreemptionMode.SWAP or preemption.may_swap, (
                "it swaps, but may_swap is False, so there are no host blocks"
            )
            again = preemption.mode(group)
            assert again is mode is of_twin, (
                f"for the same group, it must return the same mode, not {mode}, {again}, {of_twin}"
            )
            wanted = self.expected(group)
            assert wanted is None or mode is wanted, f"{group}: its mode is {mode}, not {wanted}"

    def check_reservations(
        self, requests: Sequence[Request], computed: Sequence[int], block_size: int
    ) -> None:
        """Check that it reserves between the present and the maximum length."""
        preemption, twin = self.make(block_size), self.make(block_size)
        for group in self._groups(requests, computed):
            with untouched([group]):
                tokens = preemption.tokens_to_reserve(group)
            assert preemption.tokens_to_reserve(group) == tokens, (
                "for the same group, it must reserve the same number of tokens"
            )
            assert twin.tokens_to_reserve(group) == tokens, (
                "for the same group, it must reserve the same number of tokens"
            )
            longest = max(len(sequence.tokens) for sequence in group.live)
            whole = -(-group.max_length // block_size) * block_size
            assert tokens is None or longest <= tokens <= whole, (
                f"{tokens} tokens are reserved for a sequence that has {longest} and may grow "
                f"to {group.max_length}"
            )

    def check_swaps(
        self, values: Mapping[str, Any], workload: Workload, num_host_blocks: int
    ) -> None:
        """Check a workload, and that it is swapped only where that is possible."""
        recorder = _SwapRecorder()
        values = {**values, "num_host_blocks": num_host_blocks}
        engine = build_memory_engine(self.registry, observers=[recorder], **values)
        check_served(engine, workload, serve(engine, workload))
        assert not recorder.swapped or (self.make().may_swap and num_host_blocks), (
            f"{recorder.swapped} groups were swapped to {num_host_blocks} host blocks"
        )

    def _groups(self, requests: Sequence[Request], computed: Sequence[int]) -> list[SequenceGroup]:
        """Some waiting groups, and the same requests running."""
        return [
            *waiting_groups(requests),
            *running_groups(empty_cache(self.registry), requests, computed),
        ]


class _SwapRecorder(Observer):
    def __init__(self) -> None:
        self.swapped = 0

    def on_step(self, step: StepRecord, /) -> None:
        self.swapped += len(step.swapped_out)
