"""One run of a cluster for ``paged-core simulate``, and what is printed of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from paged_core.cli.output import print_table
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.counted import counted
from paged_plugins.lab.cluster.record import ClusterRecord, ReplicaTotals
from paged_plugins.lab.cluster.request_log import request_log
from paged_plugins.lab.cluster.simulate_cluster import router_options, simulate_cluster
from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.statistics.wording import value_text
from paged_plugins.workloads.spec import WorkloadSpec

_EXTREMES = 3
"""Replicas that are shown of each end."""


class ClusterRun:
    """Serves a workload on replicas of an engine.

    Args:
        num_workers: processes that share the replicas; 1: this one.
        requests_file: a line for each request is written to it; ``None``: nowhere.

    Raises:
        SettingsError: the engines cannot be simulated, or the file cannot be written.
    """

    def __init__(
        self,
        settings: EngineSettings,
        registry: Registry,
        spec: WorkloadSpec,
        seed: int,
        *,
        num_replicas: int,
        num_workers: int,
        slo: ServiceLevel,
        requests_file: Path | None,
        advance: Callable[[int], None],
    ) -> None:
        self.router = router_options(settings, registry).name
        self.what = f"{spec.name}, seed {seed}"
        with request_log(requests_file) as on_request:
            self.record: ClusterRecord = simulate_cluster(
                settings,
                registry,
                spec.build(),
                seed,
                num_replicas=num_replicas,
                num_workers=num_workers,
                slo=slo,
                on_request=on_request,
                advance=advance,
            )

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        record = self.record
        return {
            "router": self.router,
            "requests": record.num_served + record.num_failed,
            "measures": record.measures(),
            "replicas": [_replica(each) for each in record.replicas],
            "timeline": [
                {
                    "time": sample.time,
                    "requests": sample.num_requests,
                    "tokens": sample.num_tokens,
                    "most_requests": sample.most_requests,
                    "idle_replicas": sample.num_idle,
                }
                for sample in record.timeline
            ],
            "failure": record.failure,
        }

    def print(self, seconds: float) -> None:
        """Print tables.

        Args:
            seconds: that the simulation took.
        """
        record, replicas = self.record, self.record.replicas
        number = record.num_served + record.num_failed
        title = f"{self.what}: {number:,} requests on {counted(len(replicas), 'replica')} behind "
        title += self.router
        if record.num_served:
            title += f", {value_text('makespan_s', record.elapsed)} in {seconds:.1f} s"
        typer.echo(title)
        if record.num_failed:
            failed = counted(record.num_failed, "request")
            typer.echo(f"{failed} failed, the first: {record.failure}")
        if not record.num_served:
            return  # there is nothing to measure
        if record.num_failed:
            typer.echo("TTFT, TPOT, completion and queueing are those of the other requests")
        print_table("", ["measure", "value"], self._measure_rows())
        typer.echo("Replicas by generated tokens, the most first")
        columns = ["replica", "requests", "generated tokens", "hit rate", "busy"]
        print_table("", columns, self._replica_rows())

    def _measure_rows(self) -> Iterator[Sequence[str]]:
        for name, value in self.record.measures().items():
            if name in MEASURES:
                yield MEASURES[name].title, value_text(name, value)
            else:
                yield _OF_REPLICAS[name], f"{value:.3f}"

    def _replica_rows(self) -> Iterator[Sequence[str]]:
        replicas, elapsed = self.record.replicas, self.record.elapsed
        order = sorted(range(len(replicas)), key=lambda number: -replicas[number].num_generated)
        shown = order
        if len(order) > 2 * _EXTREMES:
            shown = [*order[:_EXTREMES], *order[-_EXTREMES:]]
        for place, number in enumerate(shown):
            if place == _EXTREMES and len(shown) < len(order):
                yield "...", "", "", "", ""
            each = replicas[number]
            yield (
                str(number),
                f"{each.num_requests:,}",
                f"{each.num_generated:,}",
                _percent(each.num_cached, each.num_prompt),
                _percent(each.busy_seconds, elapsed),
            )


_OF_REPLICAS = {
    "replica_jain": "Jain index of replicas",
    "replica_max_over_mean": "busiest replica over mean",
}


def _replica(totals: ReplicaTotals) -> dict[str, Any]:
    return {
        "requests": totals.num_requests,
        "generated_tokens": totals.num_generated,
        "prompt_tokens": totals.num_prompt,
        "cached_tokens": totals.num_cached,
        "steps": totals.num_steps,
        "busy_seconds": totals.busy_seconds,
    }


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
