"""Drop a victim's keys and values, and compute them again later."""

from __future__ import annotations

from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.preemption import Preemption, PreemptionMode, PreemptionParts
from paged_core.sequence import SequenceGroup


class RecomputeSettings(ComponentSettings):
    """Options of :class:`RecomputePreemption`."""

    name: Literal["recompute"] = "recompute"


class RecomputePreemption(Preemption):
    """Cheap while prompts are short or cached: one prefill restores a victim, output included."""

    def __init__(self, options: RecomputeSettings, parts: PreemptionParts, /) -> None:
        pass

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE
