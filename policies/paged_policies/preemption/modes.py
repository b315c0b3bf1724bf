"""Modes of preemption: computed again, swapped in, or never preempted at all."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import PreemptionContext
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.plugins.component import ComponentSettings
from paged_core.sequence import SequenceGroup


class RecomputeSettings(ComponentSettings):
    """Options of :class:`RecomputePreemption`."""

    name: Literal["recompute"] = "recompute"


class SwapSettings(ComponentSettings):
    """Options of :class:`SwapPreemption`."""

    name: Literal["swap"] = "swap"


class AutoSettings(ComponentSettings):
    """Options of :class:`AutoPreemption`."""

    name: Literal["auto"] = "auto"


class NeverSettings(ComponentSettings):
    """Options of :class:`NeverPreemption`."""

    name: Literal["never"] = "never"


class _WithoutOptions(Preemption):
    """A preemption that nothing but the group decides."""

    def __init__(self, options: ComponentSettings, context: PreemptionContext, /) -> None:
        pass


class RecomputePreemption(_WithoutOptions):
    """Drops a victim's keys and values, and computes them again when it is admitted again.

    Cheap while prompts are short or cached: one prefill restores a victim, output included.
    """

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE


class SwapPreemption(_WithoutOptions):
    """Moves a victim's keys and values to host memory, and back later.

    Costs bandwidth instead of computation, and host memory (``num_host_blocks``).
    """

    may_swap = True

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.SWAP


class AutoPreemption(_WithoutOptions):
    """vLLM V0's rule: recompute a single sequence, swap a group of several.

    One prefill restores a single sequence, but a group would need several.
    """

    may_swap = True

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE if group.num_seqs == 1 else PreemptionMode.SWAP


class NeverPreemption(_WithoutOptions):
    """Admits only what fits to its end: reserves blocks for the longest a request may become.

    No token is ever computed twice and none is moved; but what requests do not use of their
    ``max_tokens`` stays idle while others wait.
    """

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return PreemptionMode.RECOMPUTE

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return group.max_length
