"""The conformance kit of the slot ``router``, see :mod:`paged_testing`."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_plugins.routing.testing.router_conformance import RouterConformance

__all__ = ["RouterConformance"]
