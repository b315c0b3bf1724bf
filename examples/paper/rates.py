"""The request rate that an engine sustains."""

from __future__ import annotations

from statistics import fmean

from figure import run

from paged_core.settings import EngineSettings
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.workloads.arrivals import Poisson
from paged_plugins.workloads.spec import WorkloadSpec


def normalised_latency(record: RunRecord) -> float:
    """Return the mean, over requests, of the seconds from arrival to end per generated token."""
    return fmean((each.finished - each.arrival) / each.num_output for each in record.requests)


def batch(record: RunRecord) -> float:
    """Return the mean number of requests that run, over time."""
    seconds = sum(each.seconds for each in record.steps)
    return sum(each.num_running * each.seconds for each in record.steps) / seconds


def at_rate(
    settings: EngineSettings, workload: WorkloadSpec, rate: float, seconds: float
) -> RunRecord:
    """Serve Poisson arrivals at ``rate`` per second, for so many seconds."""
    asked = workload.model_copy(
        update={"arrivals": Poisson(rate=rate), "requests": max(1, round(rate * seconds))}
    )
    return run(settings, asked)


def sustained(
    settings: EngineSettings,
    workload: WorkloadSpec,
    *,
    latency: float,
    seconds: float,
    precision: float = 0.03,
) -> float:
    """Return the highest rate at which the normalised latency stays below ``latency``.

    Args:
        seconds: of arrivals; the longer, the steeper the latency rises above the capacity.
        precision: relative, of the rate that is returned.
    """
    low, high = 0.0, 0.5
    while normalised_latency(at_rate(settings, workload, high, seconds)) < latency:
        low, high = high, 2 * high
    while high - low > precision * high:
        middle = (low + high) / 2
        if normalised_latency(at_rate(settings, workload, middle, seconds)) < latency:
            low = middle
        else:
            high = middle
    return low
