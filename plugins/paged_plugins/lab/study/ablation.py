"""What an ablation studies, as its file says it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, field_validator, model_validator

from paged_core.config.entry import Layer
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.study.arms import PlannedArm, layer, plan_arms
from paged_plugins.lab.study.yaml_file import Strict, parse
from paged_plugins.progress import counted
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.spec import WorkloadSpec

MAX_RUNS = 100_000
"""Of one study; more is taken for a mistake."""
SIMULATED = "simulated"
"""The executor without a model, on the virtual clock."""


def _seeds(value: object) -> object:
    """Turn a number of seeds into seeds."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_RUNS:
            raise ValueError(f"give 1 to {MAX_RUNS:,} seeds, or a list of them")
        return tuple(range(value))
    return value


def _workload(value: object) -> object:
    """Turn the name of a workload, or of a file of one, into what it describes."""
    if isinstance(value, str):
        try:
            return workload_spec(value)
        except SettingsError as error:
            raise ValueError(str(error)) from None
    return value


Seed = Annotated[StrictInt, Field(ge=0, lt=2**32)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_seeds), Field(min_length=1)]
OneWorkload = Annotated[WorkloadSpec, BeforeValidator(_workload)]
Axes = dict[str, Annotated[list[Any], Field(min_length=1)]]


class Study(Strict):
    """What every study has: a base, what is varied around it, on which workloads."""

    base: dict[str, Any] = Field(default_factory=dict)
    """Settings by key, which may be dotted; ``profile`` is one."""
    axes: Axes
    """Values by setting."""
    workloads: tuple[OneWorkload, ...]
    executor: str | dict[str, Any] = SIMULATED
    cost_model: str | dict[str, Any] | None = None
    """Of simulated steps; ``None``: the executor's own choice."""
    slo: ServiceLevel = ServiceLevel()

    @field_validator("slo")
    @classmethod
    def _positive(cls, slo: ServiceLevel) -> ServiceLevel:
        bounds = (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms)
        if any(bound is not None and bound <= 0 for bound in bounds):
            raise ValueError("its times are milliseconds above 0")
        return slo

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        if not self.workloads:
            raise ValueError("workloads: name one at least")
        names = [workload.name for workload in self.workloads]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two workloads are called {name!r}; give each a `name`")
        for key in ("executor", "cost_model"):
            if key in self.base:
                raise ValueError(f"write `{key}` beside `base`, not in it")
        for key in (*self.base, *self.axes):
            if key.partition(".")[0] == "observers":
                raise ValueError(
                    "leave `observers` out: all runs would write the same files; for the block map "
                    "of one, give --observers to `paged-core simulate`"
                )
        return self

    def layers(self) -> list[Layer]:
        """Return the settings of the base, lowest layer first."""
        own: dict[str, Any] = {"executor": self.executor}
        if self.cost_model is not None:
            own["cost_model"] = self.cost_model
        return [layer(own, "executor"), layer(self.base, "base")]


class Ablation(Study):
    """The content of ``ablation.yaml``."""

    product: bool = False
    """All combinations, instead of one axis at a time around the base."""
    seeds: Seeds = (0, 1, 2, 3, 4)

    @model_validator(mode="after")
    def _bounded(self) -> Ablation:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: one is given twice")
        num_runs = self.most_arms * len(self.workloads) * len(self.seeds)
        if num_runs > MAX_RUNS:
            raise ValueError(
                f"these are up to {num_runs:,} runs ({counted(self.most_arms, 'arm')}, "
                f"{counted(len(self.workloads), 'workload')}, "
                f"{counted(len(self.seeds), 'seed')}), and {MAX_RUNS:,} is the most"
            )
        return self

    @property
    def most_arms(self) -> int:
        """How many there are at most: some may have the same settings."""
        lengths = [len(values) for values in self.axes.values()]
        return 1 + (prod(lengths) if self.product else sum(lengths))

    def arms(
        self, registry: Registry, advance: Callable[[], None] = lambda: None
    ) -> list[PlannedArm]:
        """Return its arms, the base first; SettingsError if the settings of one are invalid.

        Args:
            advance: called when the settings of one were checked.
        """
        return plan_arms(self.layers(), self.axes, registry, product=self.product, advance=advance)


def parse_ablation(text: str, path: Path) -> Ablation:
    """Return what the text of an ablation's file describes; SettingsError if it is wrong."""
    return parse(text, Ablation, path)
