"""First-party cost models pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from paged_plugins.lab.testing import CostModelConformance


class TestLinear(CostModelConformance):
    component = "linear"


class TestRoofline(CostModelConformance):
    component = "roofline"


class TestRooflineOfSeveralDevices(CostModelConformance):
    component: ClassVar[str | Mapping[str, Any]] = {
        "name": "roofline",
        "device": "l4",
        "model": "opt-13b",
        "tensor_parallel": 4,
        "step_overhead": 0,
    }
    settings: ClassVar[Mapping[str, Any]] = {"kv_cache_dtype": "fp8_e4m3"}
