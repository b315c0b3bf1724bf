"""Move a victim's keys and values to host memory, and back later."""

from __future__ import annotations

from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.preemption import Preemption, PreemptionMode, PreemptionParts
from paged_core.sequence import SequenceGroup


class SwapSettings(ComponentSettings):
    """Options of :class:`SwapPreemption`."""

    name: Literal["swap"] = "swap"


class SwapPreemption(Preemption):
    """Costs bandwidth instead of computation, and host memory (``num_host_blocks``)."""

    may_swap = True

    def __init__(self, options: SwapSettings, parts: PreemptionParts, /) -> None:
        pass

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.SWAP
