"""Settings of Hypothesis for properties that serve whole workloads."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def profile(max_examples: int) -> settings:
    """Try so many examples; to make one, and to serve it, may take long."""
    return settings(
        max_examples=max_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
