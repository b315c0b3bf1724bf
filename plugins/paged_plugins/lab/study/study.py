"""Studies: which arms serve which workloads with which seeds, and the files that describe them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from paged_core.engine.contexts import Maker
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.settings.documents import DocumentError
from paged_core.settings.layers import Layer
from paged_core.settings.schema import EngineSettings
from paged_plugins.files import Document, mistakes, read_file
from paged_plugins.lab.cluster.simulate_cluster import (
    DEFAULT_ROUTER,
    MAX_REPLICAS,
    check_slot,
    router_options,
)
from paged_plugins.lab.cost_model import CostModelContext
from paged_plugins.lab.measures import ServiceLevel
from paged_plugins.lab.runs.shadows import WATCHED, Baseline
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.lab.simulation import CheckedCostModel
from paged_plugins.lab.study.arms import LabelledTable, LineOf, PlannedArm, layer, plan_arms
from paged_plugins.lab.study.unused import draws, refuse_unused
from paged_plugins.lab.tasks.task import (
    Task,
    contents,
    files_of_settings,
    files_of_workload,
)
from paged_plugins.progress import MANY, counted, progress
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.spec import WorkloadSpec

MAX_RUNS = 100_000
"""Runs of one study, at most; more is taken for a mistake."""
_WORKLOADS = ""
"""The key of the files that workloads name, as no arm is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fractions:
    """Load and cache that are asked for; ``None``: as the workloads and the settings say."""

    load: Sequence[float] = ()
    """Shares of the rate that the first arm can serve, each of which makes a workload."""
    cache: float | None = None
    """Share of the blocks that the first arm holds at most without a limit."""
    working_set: float | None = None
    """Instead of that one: share of the distinct blocks of a workload."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Every arm serves every workload with every seed."""

    arms: Sequence[PlannedArm]
    """The base first."""
    workloads: Sequence[WorkloadSpec]
    seeds: Sequence[int]
    slo: ServiceLevel = field(default_factory=ServiceLevel)
    command: str = ""
    """Command that runs it."""
    text: str = ""
    """Text of the file that describes it, if one does."""
    num_replicas: int | None = None
    """Engines behind a router, in each run; ``None``: one alone."""
    fractions: Fractions = Fractions()
    num_blocks: Mapping[str, int] = field(default_factory=dict)
    """Blocks of all arms, by the name of the workload; without it as the settings of an arm say."""
    is_exact: bool = False
    """True if seeds draw nothing: one run tells all."""
    chosen: Sequence[Mapping[str, Any]] = ()
    """Choices of rates and blocks for workloads, see
    :mod:`paged_plugins.lab.load.fractions`."""
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    """By the label of an arm, the components of its baseline that arms vary: decisions of these are
    counted, and compared."""
    reverses_ties: bool = False
    """As in :class:`~paged_plugins.lab.tasks.task.Task`."""
    files: Mapping[str, Mapping[Path, str]] | None = None
    """Digests of the files that settings name, by the label of the arm, and of those that workloads
    name; ``None``: whatever is in them."""

    def tasks(self) -> Iterator[Task]:
        """Yield every run: all arms on one workload with one seed before the next ones, and with
        the next seed in turned order, so that a machine that becomes slower or faster does so to
        all arms alike.
        """
        for number, seed in enumerate(self.seeds):
            for workload in self.workloads:
                for one in reversed(self.arms) if number % 2 else self.arms:
                    yield Task(
                        arm=one.arm.label,
                        settings=self._settings(one, workload),
                        files=self.files_of(one.arm.label, workload),
                        workload=workload,
                        seed=seed,
                        num_replicas=self.num_replicas,
                        baseline=self.baselines.get(one.arm.label),
                        reverses_ties=self.reverses_ties,
                    )

    def pinned(self) -> Study:
        """Return it with what is in the files that runs read: one that changes from now on fails
        the runs that read it.
        """
        read = {one.arm.label: files_of_settings(one.settings) for one in self.arms}
        named = {path for each in self.workloads for path in files_of_workload(each)}
        files = {label: contents(paths) for label, paths in read.items()}
        return replace(self, files=files | {_WORKLOADS: contents(named)})

    def files_of(self, arm: str, workload: WorkloadSpec) -> Mapping[Path, str] | None:
        """Return the files that a run of an arm reads, as a task has them."""
        if self.files is None:
            return None
        known = self.files[_WORKLOADS]
        return {
            **self.files[arm],
            **{path: known.get(path, "") for path in files_of_workload(workload)},
        }

    def _settings(self, one: PlannedArm, workload: WorkloadSpec) -> EngineSettings:
        num_blocks = self.num_blocks.get(workload.name)
        if num_blocks is None:
            return one.settings
        return one.settings.model_copy(update={"num_blocks": num_blocks})

    def __len__(self) -> int:
        """Runs."""
        return len(self.arms) * len(self.workloads) * len(self.seeds)

    @property
    def is_real(self) -> bool:
        """Return whether an arm runs a model, so that its times are those of this machine."""
        return any(one.settings.executor.name != SIMULATED for one in self.arms)

    def once(self, registry: Registry) -> Study:
        """Return it with one seed if seeds draw nothing, so that its differences are exact: times
        are simulated, and neither the workloads nor the components of an arm draw.
        """
        is_drawn = self.is_real or not all(each.draws_nothing for each in self.workloads)
        if is_drawn or any(draws(one.settings, registry, self.num_replicas) for one in self.arms):
            return self
        return replace(self, seeds=self.seeds[:1], is_exact=True)

    def watched(self, registry: Registry) -> Study:
        """Return it with the decisions counted of all components that its arms vary."""
        made: dict[str, dict[str, ComponentSettings]] = {}
        for one in self.arms:
            own = dict(one.settings)
            made[one.arm.label] = {slot: own[slot] for slot in WATCHED if slot != "router"}
            if self.num_replicas:
                made[one.arm.label]["router"] = router_options(one.settings, registry)
        first, *others = made.values()
        varied = [slot for slot in first if any(each[slot] != first[slot] for each in others)]
        arms = [one.arm for one in self.arms] if varied else []
        bases = {arm.label: made.get(arm.compared_with, first) for arm in arms}
        baselines = {label: {slot: base[slot] for slot in varied} for label, base in bases.items()}
        return replace(self, baselines=baselines)

    @property
    def chooses_blocks(self) -> bool:
        """Return whether blocks are chosen as a part of what is needed."""
        return (self.fractions.cache or self.fractions.working_set) is not None

    def check_fractions(self) -> None:
        """Check that it leaves to its fractions what they choose.

        Raises:
            SettingsError: it does not; the message names the setting, and what to leave out.
        """
        asked = self.fractions
        if self.is_real and asked != Fractions():
            name = "load" if asked.load else "cache" if asked.cache else "working_set"
            raise SettingsError(
                f"{name}: what it is a fraction of is measured in simulation; leave it out where a "
                "model runs, and give the workload's rate or num_blocks instead"
            )
        if len(set(asked.load)) < len(asked.load):
            raise SettingsError("load: a fraction is given twice; leave one out")
        if asked.cache is not None and asked.working_set is not None:
            raise SettingsError("cache and working_set both choose the blocks; leave one out")
        if not self.chooses_blocks:
            return
        name = "cache" if asked.cache is not None else "working_set"
        for one in self.arms:
            for key in ("num_blocks", "kv_cache_memory"):
                if getattr(one.settings, key) is not None:
                    raise SettingsError(
                        f"{key}: `{name}` chooses the blocks; leave one of them out"
                    )
        if len({one.settings.block_size for one in self.arms}) > 1:
            raise SettingsError(f"block_size: `{name}` counts blocks of one size; vary one of them")

    def check_workloads(self) -> list[str]:
        """Draw each workload once, so that none fails when it is run, and return notes on them.

        Raises:
            SettingsError: one has no request, contradicts itself, or its file is broken.
        """
        notes = []
        for each in self.workloads:
            try:
                notes.append(each.check())
            except SettingsError as error:
                raise SettingsError(f"{error} (workload {each.name})") from None
        return [note for note in notes if note]

    def check_cost_models(self, registry: Registry) -> None:
        """Make the cost model of each simulated arm once, so that none fails when it is run.

        Raises:
            SettingsError: one cannot be made, or nothing fits beside its model; the message names
                the arm.
        """
        for one in self.arms:
            settings = one.settings
            if settings.executor.name != SIMULATED:
                continue
            chosen = dict(settings)["cost_model"]
            context = CostModelContext(settings=settings, maker=Maker(settings, registry))
            try:
                made = make_component(registry, "cost_model", chosen, context)
                if settings.num_blocks is None and not self.chooses_blocks:
                    CheckedCostModel(made, chosen.name).num_blocks(settings.block_size)
            except (PagedCoreError, OSError) as error:
                raise SettingsError(f"{error} (arm {one.arm.label})") from None

    def __str__(self) -> str:
        counts = {"arm": self.arms, "workload": self.workloads, "seed": self.seeds}
        parts = (counted(len(some), noun) for noun, some in counts.items())
        return f"{counted(len(self), 'run')}: {' x '.join(parts)}"


# ---------------------------------------------------------------------- files


class Strict(BaseModel):
    """A part of a file: nothing but what it declares, and frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def parse(text: str, made: type[Model], path: Path) -> Model:
    """Return what the text of a file in YAML describes.

    Raises:
        SettingsError: it does not; the message, of one line, names file, key and cause.
    """
    return _parse(text, made, path)[0]


def _parse(text: str, made: type[Model], path: Path) -> tuple[Model, Document]:
    try:
        document = Document(text)
    except DocumentError as error:
        where = f", line {error.line}" if error.line else ""
        raise SettingsError(f"{path}{where}: {error}") from None
    if not isinstance(document.content, dict):
        keys = ", ".join(made.model_fields)
        raise SettingsError(f"{path} must be a mapping with the keys {keys}")
    try:
        return made.model_validate(document.content), document
    except ValidationError as error:
        problems = mistakes(error, made, document.content, document)
        raise SettingsError(f"{path}: {problems}") from None


def _seeds(value: object) -> object:
    """Turn a number of seeds into seeds."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_RUNS:
            raise ValueError(f"give 1 to {MAX_RUNS:,} seeds, or a list of them")
        return tuple(range(value))
    if not isinstance(value, list | tuple):
        raise ValueError(f"give a number of seeds, or a list of them, not {value!r:.80}")
    return value


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    for seed, times in Counter(seeds).items():
        if times > 1:
            raise ValueError(f"{seed} is given twice; leave one out")
    return seeds


def _listed(value: object) -> object:
    """Turn one number into a list of it."""
    return value if isinstance(value, list | tuple) else (value,)


def _labelled(value: object) -> object:
    """Turn tables by their labels into a list of them."""
    if not isinstance(value, Mapping):
        return value
    for label, table in value.items():
        if not isinstance(table, Mapping):
            raise ValueError(f"{label} is the label of a table {{name: ...}}; or give a list")
    return [LabelledTable(str(label), table) for label, table in value.items()]


def _workload(value: object) -> object:
    """Turn the name of a workload, or of a file of one, into what it describes."""
    if isinstance(value, str):
        try:
            return workload_spec(value)
        except SettingsError as error:
            raise ValueError(str(error)) from None
    return value


Seed = Annotated[StrictInt, Field(ge=0, lt=2**32)]
Seeds = Annotated[
    tuple[Seed, ...], BeforeValidator(_seeds), Field(min_length=1), AfterValidator(_distinct)
]
OneWorkload = Annotated[WorkloadSpec, BeforeValidator(_workload)]
Share = Annotated[float, Field(ge=0.01, le=4, strict=True)]
Values = Annotated[list[Any], Field(min_length=1), BeforeValidator(_labelled)]


class Ablation(Strict):
    """The content of ``ablation.yaml``: a base, what is varied around it, on which workloads."""

    base: dict[str, Any] = Field(default_factory=dict)
    """Settings by key, which may be dotted; ``profile`` is one."""
    axes: dict[str, Values]
    """Values by setting: a list, or tables of options by their labels."""
    product: bool = False
    """True if all combinations are arms, instead of one axis at a time around the base."""
    workloads: tuple[OneWorkload, ...]
    seeds: Seeds = tuple(range(6))
    executor: str | dict[str, Any] = SIMULATED
    cost_model: str | dict[str, Any] | None = None
    """Cost model of simulated steps; ``None``: the executor's own choice."""
    slo: ServiceLevel = ServiceLevel()
    replicas: Annotated[StrictInt, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Engines behind a router; ``None``: one alone."""
    load: Annotated[tuple[Share, ...], BeforeValidator(_listed)] = ()
    """Loads of every workload, as shares of the rate that the base can serve; one alone, too."""
    cache: Share | None = None
    """Blocks, as a share of those that the base holds at most without a limit."""
    working_set: Share | None = None
    """Blocks, as a share of the distinct ones of a workload."""

    @model_validator(mode="before")
    @classmethod
    def _no_workload(cls, values: Any) -> Any:
        others = values.keys() - cls.model_fields.keys() if isinstance(values, Mapping) else set()
        if others and values.keys() <= WorkloadSpec.model_fields.keys():
            raise ValueError(
                "this is a workload: give it to `paged-core compare`, or name it under `workloads` "
                "in the file of a study, which has `axes` too"
            )
        return values

    @field_validator("slo")
    @classmethod
    def _positive(cls, slo: ServiceLevel) -> ServiceLevel:
        if any(bound <= 0 for bound in slo.limits.values()):
            raise ValueError("its times are milliseconds above 0")
        return slo

    @model_validator(mode="after")
    def _consistent(self) -> Ablation:
        if not self.workloads:
            raise ValueError("workloads: name one at least")
        names = [workload.name for workload in self.workloads]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two workloads are called {name!r}; give each a `name`")
        for key in ("executor", "cost_model"):
            if key in self.base:
                raise ValueError(f"write `{key}` beside `base`, not in it")
        if "replicas" in self.axes:
            raise ValueError("axes.replicas: all arms have as many; write `replicas: N` beside it")
        for key in (*self.base, *self.axes):
            if key.partition(".")[0] == "observers":
                raise ValueError(
                    "leave `observers` out: all runs would write the same files; for those of one, "
                    "give --observers to `paged-core simulate`"
                )
        return self

    @model_validator(mode="after")
    def _bounded(self) -> Ablation:
        num_runs = self.most_arms * len(self.workloads) * len(self.seeds) * max(1, len(self.load))
        if num_runs > MAX_RUNS:
            raise ValueError(
                f"these are up to {num_runs:,} runs ({counted(self.most_arms, 'arm')}, "
                f"{counted(len(self.workloads), 'workload')}, "
                f"{counted(len(self.seeds), 'seed')}), and {MAX_RUNS:,} is the most"
            )
        return self

    @property
    def most_arms(self) -> int:
        """Number of arms at most: some may have the same settings."""
        lengths = [len(values) for values in self.axes.values()]
        return 1 + (prod(lengths) if self.product else sum(lengths))

    def layers(self, line: LineOf = lambda *_: None) -> list[Layer]:
        """Return the settings of the base, lowest layer first; ``line``: of a part of the file."""
        own: dict[str, Any] = {"executor": self.executor}
        if self.cost_model is not None:
            own["cost_model"] = self.cost_model
        if (self.replicas or 1) > 1:
            own["router"] = DEFAULT_ROUTER
        return [
            *(layer({key: value}, key, line) for key, value in own.items()),
            layer(self.base, "base", lambda key: line("base", key)),
        ]

    def arms(
        self,
        registry: Registry,
        advance: Callable[[], None] = lambda: None,
        line: LineOf = lambda *_: None,
    ) -> list[PlannedArm]:
        """Return its arms, the base first; SettingsError if the settings of one are invalid.

        Args:
            advance: called when the settings of one were checked.
            line: of a part of the file.
        """
        if (self.replicas or 1) > 1:
            check_slot(registry)
        arms = plan_arms(
            self.layers(line),
            self.axes,
            registry,
            product=self.product,
            advance=advance,
            line=line,
        )
        given = [*self.base, *self.axes, *(["cost_model"] if self.cost_model else [])]
        refuse_unused(given, [one.settings for one in arms], registry, self.replicas)
        return arms


def read_study(path: Path, registry: Registry, text: str | None = None) -> Study:
    """Read the file of a study and check the settings of all of its arms.

    Args:
        text: its content; ``None``: it is read.

    Raises:
        SettingsError: the file or an arm is wrong; the message says where.
    """
    text = read_file(path) if text is None else text
    file, document = _parse(text, Ablation, path)
    try:
        with progress(file.most_arms, "checking arms", least=MANY) as advance:
            arms = file.arms(registry, advance, document.line)
    except SettingsError as error:
        raise SettingsError(f"{path}: {'; '.join(str(error).splitlines())}") from None
    study = Study(
        arms=arms,
        workloads=file.workloads,
        seeds=file.seeds,
        slo=file.slo,
        command=f"paged-core lab run {path}",
        text=text,
        num_replicas=file.replicas,
        fractions=Fractions(load=file.load, cache=file.cache, working_set=file.working_set),
    )
    try:
        study.check_fractions()
        study.check_cost_models(registry)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    return study.once(registry).pinned()
