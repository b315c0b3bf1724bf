"""What is kept of a run of a cluster: its size does not depend on the number of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paged_plugins.lab.cluster.latency import Latency
from paged_plugins.lab.cluster.timeline import LoadSample
from paged_plugins.lab.measures.fairness import jain_index
from paged_plugins.lab.measures.measure import GOODPUT
from paged_plugins.lab.measures.percentiles import percentiles


@dataclass(slots=True, kw_only=True)
class ReplicaTotals:
    """Sums over the run of one replica."""

    num_requests: int = 0
    """That ended on it, failed ones included."""
    num_generated: int = 0
    """Tokens."""
    num_prompt: int = 0
    """Tokens of the prompts of requests that it served."""
    num_cached: int = 0
    """Those of them that its prefix cache served when the request was first admitted."""
    num_steps: int = 0
    busy_seconds: float = 0.0
    """In steps; the rest of the run was idle."""


@dataclass(slots=True, kw_only=True)
class ClusterRecord:
    """Counts, histograms and a timeline of a run."""

    replicas: list[ReplicaTotals]
    elapsed: float = 0.0
    """Seconds from the first arrival to the end of the last request."""
    num_served: int = 0
    """Requests that ended by a stop condition or by their length."""
    num_failed: int = 0
    """Requests that were refused, ignored, or ended by an error; latencies are without them."""
    failure: str | None = None
    """What the first of them was told."""
    num_good: int | None = None
    """Requests that met the service level; ``None``: it has no limits."""
    num_preemptions: int = 0
    num_evictions: int = 0
    """Cached blocks whose content was given up to make room."""
    recomputed_tokens: int = 0
    """Those that had been computed before, and were lost by a preemption."""
    token_gaps: dict[int, int] = field(default_factory=dict)
    """Times between tokens of a sequence, by bucket, see
    :mod:`paged_plugins.lab.runs.time_histogram`."""
    latencies: dict[str, Latency] = field(
        default_factory=lambda: {kind: Latency() for kind in ("ttft", "tpot", "e2e", "queueing")}
    )
    timeline: Sequence[LoadSample] = ()

    def measures(self) -> dict[str, float]:
        """Return what the run is judged by, under the names that runs of one engine have too.

        Those of replicas are added: ``replica_jain`` is Jain's index of fairness over the tokens
        that replicas generated (1: equal), and
        ``replica_max_over_mean`` the share of the busiest, by the same tokens.
        """
        replicas, seconds = self.replicas, self.elapsed
        generated = [float(each.num_generated) for each in replicas]
        found: dict[str, float] = {}
        if seconds > 0:
            if self.num_good is not None:
                found[GOODPUT] = self.num_good / seconds
            found["throughput_tokens_per_s"] = sum(generated) / seconds
            found["requests_per_s"] = self.num_served / seconds
        num_prompt = sum(each.num_prompt for each in replicas)
        if num_prompt:
            found["hit_rate"] = sum(each.num_cached for each in replicas) / num_prompt
        for kind, latency in self.latencies.items():
            found |= latency.measures(kind)
        found |= percentiles("itl", self.token_gaps)
        found["preemptions"] = float(self.num_preemptions)
        found["recomputed_tokens"] = float(self.recomputed_tokens)
        found["evictions"] = float(self.num_evictions)
        found["steps"] = float(sum(each.num_steps for each in replicas))
        if seconds > 0:
            busy = sum(each.busy_seconds for each in replicas)
            found["idle_share"] = max(0.0, 1 - busy / (seconds * len(replicas)))
        found["makespan_s"] = seconds
        found["failed"] = float(self.num_failed)
        if any(generated):
            found["replica_jain"] = jain_index(generated)
            found["replica_max_over_mean"] = max(generated) * len(replicas) / sum(generated)
        return found
