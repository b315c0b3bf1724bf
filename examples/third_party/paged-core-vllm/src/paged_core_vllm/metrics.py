"""Metrics of the decisions, in the registry that vLLM serves at ``/metrics``.

vLLM loads the class by its entry point ``vllm.stat_logger_plugins``, in each process that serves
its API; with several of those it serves other metrics than these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from paged_core_vllm.counts import counts_file, read_counts

_COUNTERS = {
    "decisions": "decisions of a component",
    "choices": "decisions among more than one",
    "differed": "decisions that vLLM's own rule would have made otherwise",
    "faults": "calls in which a component raised, after which vLLM's own rule decided",
}


class PolicyCollector:
    """Reads the counts of each scheduler when metrics are asked for."""

    def __init__(self, instance_id: str, ranks: list[int]) -> None:
        self._files = {str(rank): counts_file(instance_id, rank) for rank in ranks}

    def collect(self) -> Iterator[CounterMetricFamily]:
        found = {rank: read_counts(path) for rank, path in self._files.items()}
        for key, about in _COUNTERS.items():
            family = CounterMetricFamily(
                f"paged_core:{key}", about, labels=["engine", "slot", "component"]
            )
            for rank, slots in found.items():
                for slot, counts in slots.items():
                    family.add_metric([rank, slot, counts["name"]], counts[key])
            yield family


class PolicyMetrics(AggregateStatLoggerBase):  # type: ignore[misc]
    """A logger of vLLM that logs nothing: it registers :class:`PolicyCollector`."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        named = str(vllm_config.scheduler_config.scheduler_cls or "")
        if "paged_core_vllm" in named:
            REGISTRY.register(PolicyCollector(vllm_config.instance_id, engine_indexes))

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the counts do not come with vLLM's statistics."""

    def log_engine_initialized(self) -> None:
        """Do nothing."""
