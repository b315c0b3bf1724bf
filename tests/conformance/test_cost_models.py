"""First-party cost models pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from paged_core.errors import SettingsError
from paged_plugins.lab.testing import CostModelConformance
from unit.gpu_tables import SYSTEM, write_package


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


class TestMeasured(CostModelConformance):
    component: ClassVar[str | Mapping[str, Any]] = "measured"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _written(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = write_package(tmp_path_factory.mktemp("gpus") / "package")
        cls.component = {
            "name": "measured",
            "system": SYSTEM,
            "model": "some/small",
            "tables": folder,
        }

    def check_written(self) -> None:
        """Leave out options that were not measured."""
        with suppress(SettingsError):
            super().check_written()
