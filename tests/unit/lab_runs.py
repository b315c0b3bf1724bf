"""Small simulated runs for tests of the lab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings, settings_class
from paged_plugins.lab.cost_models.linear import PARTS
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.workload import ListedWorkload

REGISTRY = Registry.discover()
SECOND: dict[str, Any] = {"name": "linear", "fixed": 1.0, **dict.fromkeys(PARTS, 0.0)}
"""A cost model under which each step takes a second."""


def simulated(**values: Any) -> EngineSettings:
    """Settings of a small simulated engine, of which each step takes a second."""
    small = {"executor": "simulated", "cost_model": SECOND, "block_size": 4, "num_blocks": 64}
    return settings_class(REGISTRY)(**{**small, **values})


def run(requests: Sequence[WorkloadRequest], **values: Any) -> RunRecord:
    """Run requests on such an engine."""
    return run_workload(simulated(**values), REGISTRY, ListedWorkload("listed", requests), 0)


def asks(name: str, length: int, output: int, **more: Any) -> WorkloadRequest:
    """A request with a prompt of its own."""
    first = 1000 * (1 + sum(name.encode()) * 31 % 1009)
    return WorkloadRequest(id=name, prompt=(range(first, first + length),), output=output, **more)


def served(
    name: str, arrival: float, admitted: float, finished: float, **more: Any
) -> RequestRecord:
    """The record of a request of one token."""
    sizes = {"num_prompt": 10, "num_cached": 4, "num_output": 1, "num_preemptions": 0}
    return RequestRecord(
        **{"id": name, "arrival": arrival, "admitted": admitted, "first_token": finished},
        **{"finished": finished, "finish_reason": "length", **sizes, **more},
    )
