"""The plugin ``lab``: ablations, comparisons and simulations."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.plugins.component import Command, Component, Slot
from paged_core.plugins.hooks import hookimpl
from paged_plugins.lab.settings import (
    LinearSettings,
    MeasuredSettings,
    RooflineSettings,
    SimulatedSettings,
)


@hookimpl
def paged_core_slots() -> Iterator[Slot]:
    yield Slot(
        "cost_model",
        "paged_plugins.lab.cost_model:CostModel",
        "roofline",
        summary="how long a step takes",
    )


@hookimpl
def paged_core_components() -> Iterator[Component]:
    yield Component(
        "executor",
        SimulatedSettings,
        "paged_plugins.lab.simulation:SimulatedExecutor",
        summary="no model: steps take the time that a cost model predicts, on a virtual clock",
    )
    yield Component(
        "cost_model",
        LinearSettings,
        "paged_plugins.lab.cost_models.linear:LinearCost",
        summary="a weighted sum of a step's work; `paged-core calibrate` measures the weights",
    )
    yield Component(
        "cost_model",
        RooflineSettings,
        "paged_plugins.lab.cost_models.roofline:RooflineCost",
        summary="what the bandwidth and arithmetic of a device allow for a model's shape",
    )
    yield Component(
        "cost_model",
        MeasuredSettings,
        "paged_plugins.lab.cost_models.measured.measured:MeasuredCost",
        check="paged_plugins.lab.cost_models.measured.tables:unavailable_reason",
        summary="the kernels of a GPU engine by measured times (package aiconfigurator-core)",
        details="paged_plugins.lab.cost_models.measured.tables:details",
    )


@hookimpl
def paged_core_commands() -> Iterator[Command]:
    yield Command(
        "compare",
        "paged_plugins.lab.commands.studies:compare_command",
        "Vary settings under one workload, and say what that changes.",
    )
    yield Command(
        "simulate",
        "paged_plugins.lab.commands.simulate:simulate_command",
        "Serve a workload once on a virtual clock.",
    )
    yield Command(
        "calibrate",
        "paged_plugins.lab.commands.calibrate:calibrate_command",
        "Measure an engine's steps, to simulate it.",
    )
    yield Command(
        "lab", "paged_plugins.lab.commands.lab:app", "Run ablations, and read their results."
    )
