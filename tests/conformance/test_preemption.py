"""First-party preemptions pass the conformance class of their slot."""

from __future__ import annotations

from paged_core.interfaces.preemption import PreemptionMode
from paged_core.sequence import SequenceGroup
from paged_testing import PreemptionConformance


class TestRecompute(PreemptionConformance):
    component = "recompute"

    def expected(self, group: SequenceGroup, /) -> PreemptionMode | None:
        return PreemptionMode.RECOMPUTE


class TestSwap(PreemptionConformance):
    component = "swap"

    def expected(self, group: SequenceGroup, /) -> PreemptionMode | None:
        return PreemptionMode.SWAP


class TestAuto(PreemptionConformance):
    component = "auto"

    def expected(self, group: SequenceGroup, /) -> PreemptionMode | None:
        return PreemptionMode.RECOMPUTE if group.num_seqs == 1 else PreemptionMode.SWAP


class TestNever(PreemptionConformance):
    component = "never"
