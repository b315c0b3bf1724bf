"""An executor that many engines use, one after another: models and processes are started once."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal

from paged_core.engine.contexts import ExecutorContext
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_core.step import StepInput, StepResult
from paged_core.structured_outputs import StructuredOutputs

STARTED: dict[str, tuple[Any, Capacity]] = {}
"""Executors and what they hold, by name."""


class ReusedSettings(ComponentSettings):
    """Which executor it is."""

    name: Literal["reused"] = "reused"
    which: str = ""


class ReusedExecutor(Executor):
    """Offers a part of what a started executor holds; what a former engine left is replaced."""

    def __init__(self, options: ReusedSettings, context: ExecutorContext, /) -> None:
        self._inner, self._capacity = STARTED[options.which]
        self._settings = context.settings
        self.runs_in_background = self._inner.runs_in_background

    def start(self) -> Capacity:
        asked = self._settings
        assert asked.num_blocks is not None
        assert asked.num_blocks <= self._capacity.num_blocks
        num_host_blocks = asked.num_host_blocks or 0
        return replace(self._capacity, num_blocks=asked.num_blocks, num_host_blocks=num_host_blocks)

    def submit(self, step: StepInput, /) -> Any:
        return self._inner.submit(step)

    def collect(self, handle: Any, /) -> StepResult:
        result: StepResult = self._inner.collect(handle)
        return result

    def compile_grammar(self, form: StructuredOutputs, /) -> Future[None]:
        future: Future[None] = self._inner.compile_grammar(form)
        return future

    def close(self) -> None:
        pass


REUSED = Component(
    "executor", ReusedSettings, "properties.reused_executor:ReusedExecutor", summary="a test's"
)


def start(name: str, registry: Registry, **settings: Any) -> None:
    """Start an executor that engines then use by this name."""
    made = settings_class(registry)(**settings)
    parts = ExecutorContext(settings=made, registry=registry, needs_host_blocks=True)
    executor = registry.get("executor", made.executor.name).load()(made.executor, parts)
    STARTED[name] = executor, executor.start()


def stop(name: str) -> None:
    """Stop one that was started."""
    STARTED.pop(name)[0].close()
