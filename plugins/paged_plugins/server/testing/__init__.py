"""The conformance kit of the server's slots, see :mod:`paged_testing`."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_plugins.server.testing.routes_conformance import RoutesConformance
from paged_plugins.server.testing.server_conformance import ServerConformance
from paged_plugins.server.testing.services import ask, serving

__all__ = ["RoutesConformance", "ServerConformance", "ask", "serving"]
