"""First-party executors pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from integration.remote_executor import PICKLING
from paged_core.registry import Registry
from paged_core.testing import ExecutorConformance, registry_with


class TestMemory(ExecutorConformance):
    component = "memory"


class TestLocal(ExecutorConformance):
    component = "local"
    settings: ClassVar[Mapping[str, Any]] = {"model": "demo", "dtype": "float32"}
    max_examples = 12


class TestPickling(ExecutorConformance):
    """Whatever a step or a result holds can be sent to another process."""

    component = "pickling"

    def make_registry(self) -> Registry:
        return registry_with(PICKLING)
