"""The plugin ``lab``: ablations, comparisons and simulations."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.component import Command, Slot
from paged_core.hookspecs import hookimpl


@hookimpl
def paged_core_slots() -> Iterator[Slot]:
    yield Slot(
        "cost_model",
        "paged_plugins.lab.cost_model:CostModel",
        summary="how long a step of a simulation takes",
    )
    yield Slot(
        "router",
        "paged_plugins.lab.router:Router",
        summary="which replica of a simulated cluster serves a request",
    )


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "lab", "paged_plugins.lab.commands:app", "Run ablations, and read their results."
    )
