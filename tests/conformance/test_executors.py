"""First-party executors pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from paged_testing import ExecutorConformance

pytestmark = pytest.mark.usefixtures("compiled_kernels")


class TestSimulated(ExecutorConformance):
    component = "simulated"


class TestMemory(ExecutorConformance):
    component = "memory"


class TestLocal(ExecutorConformance):
    component = "local"
    settings: ClassVar[Mapping[str, Any]] = {"model": "demo", "dtype": "float32"}


@pytest.mark.heavy
class TestWorkers(ExecutorConformance):
    """Every field of a step and of a result gets to another process and back."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "workers", "inner": "memory"}


class TestProcess(TestWorkers):
    """The same component by another name."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "process", "inner": "memory"}


@pytest.mark.heavy
class TestTensorParallel(ExecutorConformance):
    """Two ranks get every step, and all of them answer it."""

    component: ClassVar[str | Mapping[str, Any]] = {
        "name": "tensor_parallel",
        "ranks": 2,
        "inner": "memory",
    }


@pytest.mark.long
class TestTensorParallelModel(ExecutorConformance):
    """Each of two ranks has its share of a model."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "tensor_parallel", "ranks": 2}
    settings: ClassVar[Mapping[str, Any]] = {"model": "demo", "dtype": "float32", "threads": 1}
    max_seconds = 60
