"""The results of several arms on equal requests: what tables, sentences and reports are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paged_plugins.lab.run_record import RunRecord

BASE = "base"
"""Label of the arm that the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One engine under study."""

    label: str
    """``base``, or what it changes: ``victim=fewest_computed``, ``evictor=slru num_blocks=128``."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key that differ from those of the base."""
    held: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key that it shares with the base, where other arms differ in them."""
    axis: str | None = None
    """The setting that it varies; ``None``: the base, or several are varied at once."""
    compared_with: str = BASE
    """Label of the arm that it is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """The latencies that a request must meet to count as served well (goodput); ``None``: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run measured."""

    arm: str
    workload: str
    seed: int
    measures: Mapping[str, float]
    """By the names of :mod:`paged_plugins.lab.measures`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Every arm on every workload with every seed; runs of one workload and seed are paired."""

    arms: Sequence[Arm]
    """The base first."""
    workloads: Sequence[str]
    seeds: Sequence[int]
    runs: Sequence[RunResult]
    slo: ServiceLevel = ServiceLevel()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Resolved settings, versions, seeds, machine, git revision."""
    record: Callable[[str, str, int], RunRecord | None] = lambda arm, workload, seed: None
    """The whole record of a run, for pictures; ``None``: it was not kept."""
