"""Workloads that differ in nothing but their rate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paged_plugins.lab.results.results import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSweep:
    """One workload at several rates."""

    title: str
    workloads: Sequence[tuple[float, str]]
    """Requests per second and the name of the workload, ascending."""


def rate_sweeps(results: Results) -> list[RateSweep]:
    """Return the workloads of the manifest that are equal but for their names and rates."""
    specs = results.manifest.get("workloads")
    groups: dict[str, list[tuple[float, str]]] = {}
    for spec in specs if isinstance(specs, Sequence) else ():
        if isinstance(spec, Mapping) and spec.get("name") in results.workloads:
            rates: list[float] = []
            rest = _without_rate({key: spec[key] for key in spec if key != "name"}, rates)
            if len(rates) == 1:
                kind = json.dumps(rest, sort_keys=True, default=str)
                groups.setdefault(kind, []).append((rates[0], spec["name"]))
    return [
        RateSweep(title=", ".join(name for _, name in sorted(group)), workloads=sorted(group))
        for group in groups.values()
        if len({rate for rate, _ in group}) > 1
    ]


def _without_rate(value: Any, rates: list[float]) -> Any:
    """Return what describes a workload without its ``rate``, which is added to ``rates``."""
    if not isinstance(value, Mapping):
        return value
    rest = {}
    for key, inner in value.items():
        if key == "rate" and isinstance(inner, int | float):
            rates.append(float(inner))
        else:
            rest[key] = _without_rate(inner, rates)
    return rest
