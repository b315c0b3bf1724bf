"""The client of several engines passes the conformance class of its slot."""

from __future__ import annotations

from paged_plugins.replicas.testing import ReplicasConformance


class TestRouted(ReplicasConformance):
    component = {"name": "routed", "count": 2}  # noqa: RUF012
