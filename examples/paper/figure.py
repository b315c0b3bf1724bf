"""A figure of a paper as a configuration: engines that serve the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from buddy import BUDDY
from pydantic import Field

from paged_core.plugins.registry import Registry
from paged_core.settings import EngineSettings, settings_class
from paged_plugins.files import read_file
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.study.arms import layer
from paged_plugins.lab.study.study import OneWorkload, Strict, parse
from paged_plugins.workloads.spec import WorkloadSpec

FOLDER = Path(__file__).parent
_SAMPLES = 400
"""Steps of a run in which the cache is looked at."""


class Figure(Strict):
    """The content of one of the YAML files beside this module."""

    about: str
    published: str
    """The paper's own words on it."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings of all engines."""
    arms: dict[str, dict[str, Any]]
    """By the name of the engine: settings that it has instead."""
    workloads: tuple[OneWorkload, ...]
    seeds: int = 1

    def settings(self, arm: str, **changes: Any) -> EngineSettings:
        """Return the settings of an engine, with some replaced."""
        layers = [layer(each) for each in (self.base, self.arms[arm], changes)]
        return settings_class(registry()).from_layers(layers)[0]

    def scaled(self, scale: float) -> Figure:
        """Return it with workloads of ``scale`` times the requests."""
        workloads = tuple(
            each.model_copy(update={"requests": max(1, round(scale * (each.requests or 1)))})
            for each in self.workloads
        )
        return self.model_copy(update={"workloads": workloads})


def run(settings: EngineSettings, workload: WorkloadSpec, seed: int = 0) -> RunRecord:
    """Serve a workload with an engine."""
    return run_workload(settings, registry(), workload.build(), seed, max_samples=_SAMPLES)


@cache
def registry() -> Registry:
    """The installed components, and the buddy allocator."""
    return Registry.discover().extended(BUDDY, plugin="paper")


def figures() -> Mapping[str, Figure]:
    """All figures, by the name of their file."""
    paths = sorted(FOLDER.glob("*.yaml"))
    return {path.stem: parse(read_file(path), Figure, path) for path in paths}
