"""The conformance kit of the slot ``replicas``, see :mod:`paged_testing`."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_plugins.replicas.testing.replicas_conformance import ReplicasConformance

__all__ = ["ReplicasConformance"]
