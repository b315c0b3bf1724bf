"""The conformance kit of the lab's slot ``cost_model``, see :mod:`paged_testing`."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_plugins.lab.testing.cost_model_conformance import CostModelConformance
from paged_plugins.routing.former_names import found_in

__all__ = ["CostModelConformance"]
__getattr__ = found_in(__name__, "testing")
