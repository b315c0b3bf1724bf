"""First-party servers and routes pass the conformance classes of their slots."""

from __future__ import annotations

import pytest

from paged_core.plugins.registry import Registry
from paged_plugins.server.testing import RoutesConformance, ServerConformance
from unit.faulty_routes import ChoiceRoutes
from unit.faulty_settings import FaultySettings, registry_of

pytestmark = pytest.mark.heavy


class TestHttp(ServerConformance):
    component = {"name": "http", "port": 0}  # noqa: RUF012


class TestOpenAI(RoutesConformance):
    component = "openai"


class TestResponses(RoutesConformance):
    component = "responses"


class TestAnthropic(RoutesConformance):
    component = "anthropic"


class TestPage(RoutesConformance):
    component = "page"


class TestChoice(RoutesConformance):
    """A path with a parameter, and a body."""

    component = "faulty"

    def make_registry(self) -> Registry:
        return registry_of("routes", ChoiceRoutes, FaultySettings, None)
