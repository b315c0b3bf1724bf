"""Recompute what is one sequence, swap what is several."""

from __future__ import annotations

from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.preemption import Preemption, PreemptionMode, PreemptionParts
from paged_core.sequence import SequenceGroup


class AutoSettings(ComponentSettings):
    """Options of :class:`AutoPreemption`."""

    name: Literal["auto"] = "auto"


class AutoPreemption(Preemption):
    """vLLM V0's rule: one prefill restores a single sequence, but a group would need several."""

    may_swap = True

    def __init__(self, options: AutoSettings, parts: PreemptionParts, /) -> None:
        pass

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE if group.num_seqs == 1 else PreemptionMode.SWAP
