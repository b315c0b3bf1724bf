"""The client of several engines passes the conformance class of its slot."""

from __future__ import annotations

import pytest

from paged_plugins.replicas.testing import ReplicasConformance

pytestmark = pytest.mark.heavy


class TestRouted(ReplicasConformance):
    component = {"name": "routed", "count": 2}  # noqa: RUF012
