"""The results of several arms on equal requests: what tables, sentences and reports are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paged_plugins.lab.measures import ServiceLevel
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.study.arms import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run measured."""

    arm: str
    workload: str
    seed: int
    measures: Mapping[str, float]
    """By the names of :mod:`paged_plugins.lab.measures`."""
    failure: str | None = None
    """What the first request was told that failed; ``None``: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Every arm on every workload with every seed; runs of one workload and seed are paired."""

    arms: Sequence[Arm]
    """The base first."""
    workloads: Sequence[str]
    seeds: Sequence[int]
    runs: Sequence[RunResult]
    slo: ServiceLevel = field(default_factory=ServiceLevel)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Resolved settings, versions, seeds, machine, git revision."""
    record: Callable[[str, str, int], RunRecord | None] = lambda arm, workload, seed: None
    """The whole record of a run, for pictures; ``None``: it was not kept."""
