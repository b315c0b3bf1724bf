"""Percentiles of times that are counted in a histogram."""

from __future__ import annotations

from collections.abc import Mapping

from paged_plugins.lab.runs.time_histogram import percentile


def percentiles(kind: str, counts: Mapping[int, int]) -> dict[str, float]:
    """Return the measures ``KIND_ms_p50``, ``_p90`` and ``_p99``; none if there are no times.

    Args:
        counts: by bucket, see :mod:`paged_plugins.lab.runs.time_histogram`.
    """
    found = {share: percentile(counts, share / 100) for share in (50, 90, 99)}
    return {
        f"{kind}_ms_p{share}": 1e3 * seconds
        for share, seconds in found.items()
        if seconds is not None
    }
