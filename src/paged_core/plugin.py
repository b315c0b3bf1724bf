"""The plugin ``core``: declares the engine's own slots, and brings no component."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.component import Slot
from paged_core.hookspecs import hookimpl


@hookimpl
def paged_core_slots() -> Iterator[Slot]:
    yield Slot(
        "block_allocator",
        "paged_core.interfaces.allocator:BlockAllocator",
        default="hash_cached",
        summary="which blocks are handed out, and which are found again by what they hold",
    )
    yield Slot(
        "evictor",
        "paged_core.interfaces.evictor:Evictor",
        default="lru",
        summary="which cached block nobody uses is given up first",
    )
    yield Slot(
        "queue_order",
        "paged_core.interfaces.queue_order:QueueOrder",
        default="fcfs",
        summary="who runs next",
    )
    yield Slot(
        "scheduler",
        "paged_core.interfaces.scheduler:Scheduler",
        default="token_budget",
        summary="what each step computes, and for whom",
    )
    yield Slot(
        "victim",
        "paged_core.interfaces.victim:Victim",
        default="newest",
        summary="who gives way when blocks run out",
    )
    yield Slot(
        "preemption",
        "paged_core.interfaces.preemption:Preemption",
        default="recompute",
        summary="how the work of who gave way is kept",
    )
    yield Slot(
        "attention",
        "paged_core.interfaces.attention:AttentionBackend",
        default="auto",
        auto=True,
        summary="how attention over the paged cache is computed",
    )
    yield Slot(
        "runner",
        "paged_core.interfaces.runner:Runner",
        default="auto",
        auto=True,
        summary="what runs the model",
    )
    yield Slot(
        "executor",
        "paged_core.interfaces.executor:Executor",
        default="local",
        summary="where the model runs",
    )
    yield Slot(
        "observers",
        "paged_core.interfaces.observer:Observer",
        default=(),
        many=True,
        summary="who is told what happened",
    )
