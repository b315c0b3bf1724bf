"""First-party routers pass the conformance class of their slot."""

from __future__ import annotations

from paged_plugins.routing.testing import RouterConformance


class TestRoundRobin(RouterConformance):
    component = "round_robin"
    most_over_mean = 1.0


class TestLeastLoaded(RouterConformance):
    component = "least_loaded"
    most_over_mean = 1.1


class TestPowerOfTwo(RouterConformance):
    component = "power_of_two"
    most_over_mean = 1.3


class TestPrefixAffinity(RouterConformance):
    component = "prefix_affinity"
    most_over_mean = 1.1


class TestPrefixAffinityThatIsTold(RouterConformance):
    component = {"name": "prefix_affinity", "index": "exact"}  # noqa: RUF012
    most_over_mean = 1.1


class TestSession(RouterConformance):
    component = "session"


class TestSessionWithBoundedLoads(RouterConformance):
    component = {"name": "session", "most_over_mean": 1.25}  # noqa: RUF012


class TestPreble(RouterConformance):
    component = "preble"
    most_over_mean = 1.3


class TestWeighted(RouterConformance):
    component = "weighted"
    most_over_mean = 1.3


class TestFreeness(RouterConformance):
    component = "freeness"
    most_over_mean = 1.3
