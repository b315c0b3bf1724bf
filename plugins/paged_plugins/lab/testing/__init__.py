"""The conformance kit of the lab's slot ``cost_model``, see :mod:`paged_testing`."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_plugins.lab.testing.cost_model_conformance import CostModelConformance

__all__ = ["CostModelConformance"]
