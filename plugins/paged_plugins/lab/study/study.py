"""Studies, and the files that describe them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from paged_core.config.documents import DocumentError, parse_yaml
from paged_core.config.entry import Layer
from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.counted import counted
from paged_plugins.input_file import mistakes, read_file
from paged_plugins.lab.measures import GOODPUT, MEASURES, ServiceLevel
from paged_plugins.lab.statistics.differences import minimum_seeds
from paged_plugins.lab.study.arms import PlannedArm, layer, plan_arms
from paged_plugins.lab.tasks.task import Task
from paged_plugins.progress import MANY, progress
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.spec import WorkloadSpec


class Strict(BaseModel):
    """A part of such a file: nothing but what it declares, and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def parse(text: str, made: type[Model], path: Path) -> Model:
    """Return what the text of a file describes.

    Raises:
        SettingsError: it does not; the message names file, key and cause.
    """
    try:
        content, _ = parse_yaml(text)
    except DocumentError as error:
        where = f", line {error.line}" if error.line else ""
        raise SettingsError(f"{path}{where}: {error}") from None
    if not isinstance(content, dict):
        keys = ", ".join(made.model_fields)
        raise SettingsError(f"{path} must be a mapping with the keys {keys}")
    try:
        return made.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{path}: {mistakes(error, made)}") from None


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


CONFIDENCE = 0.95
"""With which finalists are told apart."""
MAX_ARMS = 10_000
"""Combinations of one search."""
_Few = Annotated[StrictInt, Field(ge=1, le=1000)]


class Search(Study):
    """The content of a search's file."""

    maximize: str | None = None
    """The measure that is to be large; or ``minimize``, one that is to be small."""
    minimize: str | None = None
    seeds: _Few = 5
    """Of the last round; earlier ones have fewer, or fewer requests."""
    finalists: _Few = 3
    """Arms that are confirmed with fresh seeds."""
    confirm: Annotated[StrictInt, Field(ge=minimum_seeds(CONFIDENCE), le=1000)] = 10
    """Fresh seeds; fewer than the least could confirm nothing."""
    reduction: Annotated[StrictInt, Field(ge=2, le=100)] = 3
    """Of every so many arms, one goes on to the next round."""

    @model_validator(mode="after")
    def _possible(self) -> Search:
        if (self.maximize is None) == (self.minimize is None):
            raise ValueError("give `maximize` or `minimize`, with the name of a measure")
        if self.objective not in MEASURES:
            known = did_you_mean(self.objective, MEASURES)
            raise ValueError(f"no measure is called {self.objective!r:.80}{known}")
        if self.objective == GOODPUT and not self.slo.has_limits:
            raise ValueError(f"{GOODPUT} needs limits; give `slo`, such as `slo: {{ttft_ms: 500}}`")
        if self.executor != SIMULATED:
            raise ValueError("executor: a search is made in simulation; leave it out")
        num_arms = prod(map(len, self.axes.values()))
        if num_arms > MAX_ARMS:
            raise ValueError(
                f"axes: {num_arms:,} combinations, and {MAX_ARMS:,} is the most; leave some out"
            )
        return self

    @property
    def objective(self) -> str:
        """The measure."""
        return self.maximize or self.minimize or ""

    @property
    def sign(self) -> float:
        """1 if the measure is to be large, -1 if small."""
        return 1.0 if self.minimize is None else -1.0

    def arms(self, registry: Registry) -> list[PlannedArm]:
        """Return the base and all combinations; SettingsError if one is invalid."""
        return plan_arms(self.layers(), self.axes, registry, product=True)

    def levels(self, arms: Sequence[PlannedArm]) -> dict[str, dict[str, object]]:
        """Return the value that each arm has on each axis, for the arms that are combinations.

        Args:
            arms: the base first.
        """
        found = {}
        for one in arms:
            values = dict(arms[0].arm.held) | dict(one.arm.changes)
            if set(values) == set(self.axes):
                found[one.arm.label] = values
        return found


def read_search(path: Path) -> Search:
    """Read the file of a search; SettingsError if it is wrong, with the key and the cause."""
    return parse(read_file(path), Search, path)


def arms_of(search: Search, path: Path, registry: Registry) -> list[PlannedArm]:
    """Return the arms of a search; SettingsError, which names the file, if one is invalid."""
    try:
        return search.arms(registry)
    except SettingsError as error:
        raise SettingsError(f"{path}: {'; '.join(str(error).splitlines())}") from None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run for an ablation."""

    ablation: Ablation
    text: str
    """Of the file that describes it."""
    source: Path
    arms: Sequence[PlannedArm]
    """The base first."""

    def tasks(self) -> Iterator[Task]:
        """Yield every run: all arms on one workload with one seed before the next ones."""
        for seed in self.ablation.seeds:
            for workload in self.ablation.workloads:
                for one in self.arms:
                    yield Task(
                        arm=one.arm.label, settings=one.settings, workload=workload, seed=seed
                    )

    @property
    def is_real(self) -> bool:
        """Whether an arm runs a model, so that its times are those of this machine."""
        return any(one.settings.executor.name != SIMULATED for one in self.arms)

    def __str__(self) -> str:
        counts = {
            "arm": len(self.arms),
            "workload": len(self.ablation.workloads),
            "seed": len(self.ablation.seeds),
        }
        parts = (counted(count, noun) for noun, count in counts.items())
        return f"{counted(prod(counts.values()), 'run')}: {' x '.join(parts)}"


def read_plan(path: Path, registry: Registry) -> Plan:
    """Read an ablation and check the settings of all of its arms.

    Raises:
        SettingsError: the file or an arm is wrong; the message says where.
    """
    text = read_file(path)
    ablation = parse_ablation(text, path)
    try:
        with progress(ablation.most_arms, "checking arms", least=MANY) as advance:
            arms = ablation.arms(registry, advance)
    except SettingsError as error:
        raise SettingsError(f"{path}: {'; '.join(str(error).splitlines())}") from None
    return Plan(ablation, text, path, arms)
