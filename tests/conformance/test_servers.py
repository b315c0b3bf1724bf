"""First-party servers and routes pass the conformance classes of their slots."""

from __future__ import annotations

import pytest

from paged_plugins.server.testing import RoutesConformance, ServerConformance

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
