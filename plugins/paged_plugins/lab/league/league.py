"""Divisions of the league, their arms, and runs of them that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from pydantic import Field, StrictInt

from paged_core.errors import PagedCoreError, PluginError
from paged_core.plugins.registry import Registry
from paged_core.settings.documents import parse_yaml
from paged_core.settings.layers import Layer
from paged_core.settings.schema import settings_class
from paged_plugins.lab.cluster.simulate_cluster import DEFAULT_ROUTER
from paged_plugins.lab.load.fractions import fitted
from paged_plugins.lab.results.results import Advance, run_study
from paged_plugins.lab.settings import SIMULATED
from paged_plugins.lab.statistics.comparison import Comparison
from paged_plugins.lab.study.arms import BASE, Arm, LabelledTable, PlannedArm, layer, setting_text
from paged_plugins.lab.study.study import Fractions, OneWorkload, Strict, Study
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.workloads.spec import WorkloadSpec

_MEASURED, _ROOFLINE = "measured", "roofline"
OURS = "paged-core"
"""Distribution of the components that are shipped."""


class Division(Strict):
    """Arms that vary one slot, or whole combinations, around one base."""

    title: str
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings of its arms beside those of the league."""
    paired: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By a slot, each component of which is an arm too: settings that go with it."""
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of further arms, by label."""
    workloads: tuple[OneWorkload, ...]
    measures: tuple[str, ...]
    """Measures that are compared; the first one ranks."""
    knows_future: tuple[str, ...] = ()
    """Labels of arms that no engine can have: a bound, which wins nothing."""
    replicas: StrictInt | None = None
    requests: int = 200
    """Requests of a run at most, but for a trace."""
    load: float | None = None
    cache: float | None = None
    working_set: float | None = None


class League(Strict):
    """Everything that is run."""

    base: dict[str, Any]
    """Settings of all arms, by key."""
    gpus: dict[str, dict[str, dict[str, Any]]]
    """By the name of a GPU, options of each cost model that knows it."""
    divisions: dict[str, Division]
    """By slot; one that is no slot has variants alone."""
    seeds: int = 6

    @classmethod
    def shipped(cls) -> League:
        """Return the curated one."""
        text = files(__package__).joinpath("league.yaml").read_text("utf-8")
        return cls.model_validate(parse_yaml(text)[0])

    def quick(self) -> League:
        """Return it with one GPU, two workloads a division, and short runs."""
        gpu = next(iter(self.gpus))
        divisions = {
            slot: each.model_copy(update={"workloads": each.workloads[:2], "requests": 100})
            for slot, each in self.divisions.items()
        }
        return self.model_copy(update={"gpus": {gpu: self.gpus[gpu]}, "divisions": divisions})

    def only(self, slots: Sequence[str]) -> League:
        """Return it with some of its divisions."""
        chosen = {slot: self.divisions[slot] for slot in slots}
        return self.model_copy(update={"divisions": chosen})

    def matches(self, registry: Registry) -> list[Match]:
        """Return what is to be run: each division on each GPU."""
        model = cost_model(registry)
        return [
            self._match(slot, gpu, {"name": model, **options[model]}, registry)
            for slot in self.divisions
            for gpu, options in self.gpus.items()
        ]

    def _match(self, slot: str, gpu: str, cost: dict[str, Any], registry: Registry) -> Match:
        division = self.divisions[slot]
        own = {"executor": SIMULATED, "cost_model": cost}
        own |= {"router": DEFAULT_ROUTER} if division.replicas else {}
        below = [layer(own), layer(self.base | division.base)]
        make = settings_class(registry).from_layers
        base, _ = make(below)
        default = dict(base).get(slot)
        arms = [PlannedArm(Arm(label=BASE, values={slot: default.name} if default else {}), base)]
        entrants = list[Entrant]()
        for entrant in _entrants(slot, division, registry, below):
            changes = entrant.changes
            try:
                for key, value in changes.items():
                    _refuse_unavailable(registry, key, value)
                settings, _ = make([*below, layer(changes, entrant.label)])
            except PagedCoreError as error:
                entrants.append(replace(entrant, reason=" ".join(str(error).split())))
                continue
            is_known = any(settings == one.settings for one in arms[1:])
            if settings == base:
                entrants.append(replace(entrant, is_default=True))
            elif not is_known:
                axis = slot if set(changes) == {slot} else None
                arm = Arm(label=entrant.label, changes=changes, axis=axis)
                arms.append(PlannedArm(arm, settings))
                entrants.append(entrant)
        asked = Fractions(
            load=(division.load,) if division.load else (),
            cache=division.cache,
            working_set=division.working_set,
        )
        study = Study(
            arms=arms,
            workloads=division.workloads,
            seeds=range(self.seeds),
            num_replicas=division.replicas,
            fractions=asked,
        )
        study.check_fractions()
        study = study.once(registry).watched(registry).pinned()
        return Match(
            slot=slot,
            division=division,
            gpu=gpu,
            entrants=entrants,
            study=study,
        )


def cost_model(registry: Registry) -> str:
    """Return the cost model of the league: measured times where there are some."""
    reason = registry.get("cost_model", _MEASURED).unavailable_reason()
    return _ROOFLINE if reason else _MEASURED


def _refuse_unavailable(registry: Registry, key: str, value: Any) -> None:
    name = value.get("name") if isinstance(value, Mapping) else value
    if key in registry.slots and isinstance(name, str):
        reason = registry.unavailable_reason(registry.get(key, name))
        if reason:
            raise PluginError(reason)


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A component, or a combination, beside the base."""

    label: str
    changes: Mapping[str, Any]
    """Settings that it changes, by key."""
    package: str
    """Distribution that brings it."""
    reason: str | None = None
    """Why it cannot run; then it has no arm."""
    is_default: bool = False
    knows_future: bool = False


@dataclass(frozen=True, kw_only=True)
class Match:
    """A division on one GPU."""

    slot: str
    division: Division
    gpu: str
    entrants: Sequence[Entrant]
    study: Study

    def fitted(self, runner: Runner, advance: Advance = lambda count: None) -> Match:
        """Return it with the rates and blocks that are asked for, found with two seeds; what a
        cluster can serve is taken for that of as many engines alone.
        """
        study, asked, count = self.study, self.study.fractions, self.study.num_replicas or 1
        rates = replace(
            study,
            seeds=study.seeds[:2],
            num_replicas=None,
            fractions=Fractions(load=[count * each for each in asked.load]),
        )
        rated = fitted(rates, runner, advance, num_seeds=2)
        bounded = [
            each.model_copy(update={"requests": self._count(each)}) for each in rated.workloads
        ]
        cut = replace(
            rated,
            workloads=bounded,
            num_replicas=study.num_replicas,
            fractions=replace(asked, load=()),
        )
        return replace(self, study=replace(fitted(cut, runner, advance), seeds=study.seeds))

    def _count(self, workload: WorkloadSpec) -> int | None:
        if workload.requests is None or workload.trace:
            return workload.requests
        return min(workload.requests, self.division.requests)

    def compared(self, runner: Runner, advance: Advance = lambda count: None) -> Comparison:
        """Run it, and return what its arms differ in."""
        return Comparison.of(run_study(self.study, runner, advance), self.division.measures)


def _entrants(
    slot: str, division: Division, registry: Registry, below: Sequence[Layer]
) -> Iterator[Entrant]:
    def entrant(label: str, changes: Mapping[str, Any], package: str) -> Entrant:
        is_told = label in division.knows_future
        return Entrant(label=label, changes=changes, package=package, knows_future=is_told)

    options = {entry.path[0]: entry.value for each in below for entry in each}.get(slot)
    for name, component in registry.of(slot).items() if slot in registry.slots else ():
        kept = options.items() if isinstance(options, Mapping) else ()
        shared = {key: each for key, each in kept if key in component.settings.model_fields}
        value = LabelledTable(name, {**shared, "name": name}) if shared else name
        yield entrant(name, {slot: value}, registry.provider(slot, name).distribution)
    for other, settings in division.paired.items():
        for name in registry.of(other):
            label = " + ".join([*map(setting_text, settings.values()), name])
            package = registry.provider(other, name).distribution
            yield entrant(label, {**settings, other: name}, package)
    for label, settings in division.variants.items():
        yield entrant(label, settings, OURS)
