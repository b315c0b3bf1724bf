"""Compares a simulation with the real engine that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from paged_core.engine.clock import Clock
from paged_core.errors import EngineError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.progress import errors_text
from paged_plugins.workloads.spec import WorkloadSpec, parse_spec

COMPARED = (
    "throughput_tokens_per_s",
    "ttft_ms_p50",
    "ttft_ms_p90",
    "tpot_ms_p50",
    "tpot_ms_p90",
)
"""The measures that are compared."""
_LOAD = 0.6
"""Share of the rate that the engine can serve, where requests arrive over time."""
_SHORT: Mapping[str, Any] = {
    "prompt": {"lognormal": {"median": 60, "sigma": 0.8, "min": 4, "max": 400}},
    "output": {"uniform": [8, 48]},
}
_LONG: Mapping[str, Any] = {"prompt": {"uniform": [100, 500]}, "output": {"uniform": [4, 16]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One measure of one workload, real and simulated."""

    workload: str
    measure: str
    runs: tuple[float, ...]
    """Values of the runs of the real engine."""
    simulated: float

    @property
    def real(self) -> float:
        """The median of the runs."""
        return median(self.runs)

    @property
    def spread(self) -> float:
        """Distance between the runs, as a share of their median."""
        return (max(self.runs) - min(self.runs)) / self.real

    @property
    def error(self) -> float:
        """Simulated / real - 1."""
        return self.simulated / self.real - 1


def validation_workloads(num_requests: int, rates: Mapping[str, float]) -> Iterator[WorkloadSpec]:
    """Yield four workloads: all at once, over time, conversations, and bursts of long prompts.

    Args:
        rates: requests per second by workload; those that are left out arrive at once.
    """
    conversation = {"turns": {"uniform": [2, 4]}, "think": {"exponential": 1.0}}
    described: Mapping[str, Mapping[str, Any]] = {
        "at_once": {"lengths": _SHORT},
        "over_time": {"lengths": _SHORT},
        "conversations": {
            "lengths": _SHORT,
            "prefixes": {"system": 64, "conversation": conversation},
        },
        "bursts": {"lengths": _LONG},
    }
    for name, values in described.items():
        rate = rates.get(name)
        kind = (
            {"gamma": {"rate": rate, "burstiness": 0.4}}
            if name == "bursts"
            else {"poisson": {"rate": rate}}
        )
        yield parse_spec(
            {
                "name": name,
                "requests": num_requests,
                "max_tokens": 1000,
                **values,
                **({} if rate is None else {"arrivals": kind}),
            },
            f"workload {name}",
        )


def validate(
    real: EngineSettings,
    simulated: EngineSettings,
    registry: Registry,
    *,
    num_requests: int,
    seed: int,
    repeats: int,
    make_clock: Callable[[], Clock] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[Check]:
    """Run four workloads on both engines, and yield what they measured.

    Requests that arrive over time do so at six tenths of the rate that the simulated engine can
    serve.

    Args:
        repeats: runs of the real engine, of which the median counts.
        make_clock: of the real engine; ``None``: this machine's.
        advance: called after each of its runs.

    Raises:
        EngineError: a request ended with an error.
    """
    rates = {}
    for spec in validation_workloads(num_requests, {}):
        if spec.name != "at_once":
            record = _sound(run_workload(simulated, registry, spec.build(), seed))
            rates[spec.name] = _LOAD * len(record.requests) / record.totals.elapsed
    for spec in validation_workloads(num_requests, rates):
        workload = spec.build()
        record = _sound(run_workload(simulated, registry, workload, seed))
        predicted = measures(record, ServiceLevel())
        ran = []
        for _ in range(repeats):
            clock = make_clock() if make_clock else None
            record = _sound(run_workload(real, registry, workload, seed, clock=clock))
            ran.append(measures(record, ServiceLevel()))
            advance()
        for name in COMPARED:
            yield Check(
                workload=spec.name,
                measure=name,
                runs=tuple(run[name] for run in ran),
                simulated=predicted[name],
            )


def _sound(record: RunRecord) -> RunRecord:
    """Return a record if no request of it ended with an error; EngineError else."""
    if record.num_errors:
        raise EngineError(errors_text(record.num_errors, len(record.requests), record.error))
    return record
