"""The conformance kit of the lab's slots (extra: ``paged-core[testing]``), beside
:mod:`paged_core.testing`."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_plugins.lab.testing.router_conformance import RouterConformance

__all__ = ["RouterConformance"]
