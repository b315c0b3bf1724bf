"""Admit only what fits to its end, so that no request is ever preempted."""

from __future__ import annotations

from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.interfaces.preemption import Preemption, PreemptionMode, PreemptionParts
from paged_core.sequence import SequenceGroup


class NeverSettings(ComponentSettings):
    """Options of :class:`NeverPreemption`."""

    name: Literal["never"] = "never"


class NeverPreemption(Preemption):
    """Sets blocks aside for the longest that a request may become.

    No token is ever computed twice and none is moved; but what requests do not use of their
    ``max_tokens`` stays idle while others wait.
    """

    def __init__(self, options: NeverSettings, parts: PreemptionParts, /) -> None:
        pass

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return group.max_length
