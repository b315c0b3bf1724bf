"""A search: successive halving over all combinations, and which settings mattered.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016; the rounds are those of the most aggressive bracket of Hyperband (Li et al., JMLR 18,
2018): each has a fraction of the arms, and gives each arm so many times the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from statistics import fmean, pvariance
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, StrictInt, model_validator

from paged_core.errors import EngineError, did_you_mean
from paged_core.plugins.registry import Registry
from paged_plugins.lab.measures import BALANCE, GOODPUT, MEASURES, MEMORY_SHARES
from paged_plugins.lab.results.results import KeptRuns, Results, run_missing
from paged_plugins.lab.statistics.differences import Difference, differences, minimum_seeds
from paged_plugins.lab.study.arms import BASE, PlannedArm, setting_text
from paged_plugins.lab.study.study import Study, StudyFile, read_study_file
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.lab.tasks.task import SIMULATED
from paged_plugins.progress import counted
from paged_plugins.workloads.spec import WorkloadSpec

CONFIDENCE = 0.95
"""With which finalists are told apart."""
MAX_ARMS = 10_000
"""Combinations of one search."""
MIN_REQUESTS = 40
"""The least work by which arms are told apart, in requests of a workload."""
_Few = Annotated[StrictInt, Field(ge=1, le=1000)]


class Search(StudyFile):
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
        if self.objective == GOODPUT and not self.slo.limits:
            raise ValueError(f"{GOODPUT} needs limits; give `slo`, such as `slo: {{ttft_ms: 500}}`")
        if self.slo.limits and self.objective != GOODPUT:
            raise ValueError(f"slo has no effect on {self.objective}; leave it out")
        if self.executor != SIMULATED:
            raise ValueError("executor: a search is made in simulation; leave it out")
        if self.objective in BALANCE and (self.replicas or 1) < 2:
            raise ValueError(f"{self.objective} is of a cluster; give `replicas`, 2 or more")
        if self.objective in MEMORY_SHARES and self.replicas:
            raise ValueError(f"{self.objective} is of one engine alone; leave `replicas` out")
        num_arms = prod(map(len, self.axes.values()))
        if num_arms > MAX_ARMS:
            raise ValueError(
                f"axes: {num_arms:,} combinations, and {MAX_ARMS:,} is the most; leave some out"
            )
        return self

    def study(self, arms: Sequence[PlannedArm]) -> Study:
        """Return the study of all arms with the seeds of the last round."""
        return Study(
            arms=arms,
            workloads=self.workloads,
            seeds=range(self.seeds),
            slo=self.slo,
            num_replicas=self.replicas,
            fractions=self.fractions,
        )

    @property
    def objective(self) -> str:
        """The measure."""
        return self.maximize or self.minimize or ""

    @property
    def sign(self) -> float:
        """1 if the measure is to be large, -1 if small."""
        return 1.0 if self.minimize is None else -1.0

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


def read_search(path: Path, registry: Registry) -> tuple[Search, Sequence[PlannedArm]]:
    """Read a search and its arms; SettingsError if it is wrong, with the key and the cause."""
    search, study = read_study_file(path, Search, registry)
    return search, study.arms


# ---------------------------------------------------------------------- rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One round."""

    num_arms: int
    """That take part."""
    num_seeds: int
    share: float
    """Of the requests of each workload; below 1 only where there is one seed."""

    def __str__(self) -> str:
        part = "" if self.share == 1 else f" and {100 * self.share:.0f}% of the requests"
        return f"{counted(self.num_arms, 'arm')} with {counted(self.num_seeds, 'seed')}{part}"


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found."""

    rung: Rung
    scores: Mapping[str, float]
    """By label; higher is better. Without the arms that failed."""


def planned_rungs(search: Search, num_arms: int) -> list[Rung]:
    """Return the rounds, the last with all seeds and requests.

    Work is spared on seeds first: fewer seeds are noisier, but fewer requests may also be a
    different workload, one that never fills the cache.
    """
    num_requests = search.seeds * min(_request_counts(search).values())
    most = min(num_arms // search.finalists, num_requests // MIN_REQUESTS)
    reduction, cuts = search.reduction, 0
    while reduction ** (cuts + 1) <= most:
        cuts += 1
    seeds = [search.seeds / reduction ** (cuts - number) for number in range(cuts + 1)]
    return [
        Rung(
            num_arms=ceil(num_arms / reduction**number),
            num_seeds=max(1, round(some)),
            share=min(1.0, some),
        )
        for number, some in enumerate(seeds)
    ]


def most_runs(search: Search, planned: Sequence[Rung]) -> int:
    """Return how many runs a search takes at most, those that are known already among them."""
    all_arms = planned[0].num_arms
    rounds = sum(min(all_arms, rung.num_arms + 1) * rung.num_seeds for rung in planned)
    return (rounds + (search.finalists + 1) * search.confirm) * len(search.workloads)


class Trials:
    """The runs of arms of a search on parts of its workloads; what was run is not run again.

    Args:
        advance: called with the number of runs that ended, or were known already.
        num_blocks: by the name of the workload; without it as the settings say.
    """

    def __init__(
        self,
        search: Search,
        runner: Runner,
        advance: Callable[[int], None] = lambda count: None,
        num_blocks: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._search = search
        self._runner = runner
        self._advance = advance
        self._num_blocks = num_blocks
        self._kept = KeptRuns(search.slo)
        self.problems: dict[str, str] = {}
        """Why an arm cannot be judged, by its label."""
        self._num_requests = _request_counts(search)

    def run(self, arms: Sequence[PlannedArm], seeds: Sequence[int], share: float = 1.0) -> Results:
        """Return the results of arms on a share of the requests of each workload.

        An arm of which a run or a request fails is left out from then on, see :attr:`problems`.
        """
        search = self._search
        workloads = [self._part(workload, share) for workload in search.workloads]
        study = replace(
            search.study(arms), workloads=workloads, seeds=seeds, num_blocks=self._num_blocks
        )
        missing = self._kept.missing(study)
        self._advance(len(study) - len(missing))
        for _ in run_missing(missing, self._kept, self._runner, self._advance):
            pass
        results = self._kept.results(study)
        for label, failure in results.failures.items():
            self.problems.setdefault(label, str(failure))
        for run in results.runs:
            if search.objective not in run.measures:
                self.problems.setdefault(run.arm, f"it has no {search.objective}")
        judged = {one.arm.label for one in arms} - set(self.problems)
        return replace(
            results,
            arms=[arm for arm in results.arms if arm.label in judged],
            runs=[run for run in results.runs if run.arm in judged],
        )

    def check_base(self, scores: Mapping[str, float]) -> None:
        """Raise EngineError if the base has no score, which all others are compared with."""
        if BASE not in scores:
            raise EngineError(f"the base failed: {self.problems[BASE]}")

    def _part(self, workload: WorkloadSpec, share: float) -> WorkloadSpec:
        num_requests = max(1, ceil(share * self._num_requests[workload.name]))
        return workload.model_copy(update={"requests": num_requests})


def _request_counts(search: Search) -> dict[str, int]:
    """Return how many requests each workload has, those that follow others among them."""
    return {
        one.name: one.requests or sum(len([*first.family()]) for first in one.build().draw(0))
        for one in search.workloads
    }


def _scores(results: Results, search: Search) -> Mapping[str, float]:
    """Return how good each arm is: the objective, higher is better.

    It is averaged over seeds, and over workloads in units of the base's own (if there are several,
    and the base's is not 0), so that the workload with the largest numbers does not decide alone.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for run in results.runs:
        own = values.setdefault(run.arm, {}).setdefault(run.workload, [])
        own.append(run.measures[search.objective])
    means = {
        arm: {name: fmean(own) for name, own in found.items()} for arm, found in values.items()
    }
    units = {
        name: abs(mean) or 1.0 if len(search.workloads) > 1 else 1.0
        for name, mean in means.get(BASE, {}).items()
    }
    return {
        arm: search.sign * fmean(mean / units.get(name, 1.0) for name, mean in found.items())
        for arm, found in means.items()
    }


def _best_first(arms: Sequence[PlannedArm], found: Mapping[str, float]) -> list[PlannedArm]:
    """Return the arms that have a score by it; among equals, one that changes less comes first."""
    scored = [one for one in arms if one.arm.label in found]
    return sorted(scored, key=lambda one: (-found[one.arm.label], len(one.arm.changes)))


def _halve(
    arms: Sequence[PlannedArm], search: Search, trials: Trials
) -> tuple[list[Round], list[PlannedArm]]:
    """Return the rounds, and the finalists, the best first.

    The base, which comes first, is run in every round: several workloads are averaged in its units.

    Raises:
        EngineError: the base failed, or all others.
    """
    base, rounds, kept = arms[0], list[Round](), list(arms)
    planned = planned_rungs(search, len(arms))
    sizes = [*(rung.num_arms for rung in planned[1:]), search.finalists]
    for rung, size in zip(planned, sizes, strict=True):
        taking_part = [base, *(one for one in kept if one is not base)]
        found = _scores(trials.run(taking_part, range(rung.num_seeds), rung.share), search)
        trials.check_base(found)
        rounds.append(Round(rung, found))
        kept = _best_first(kept, found)[:size]
    return rounds, kept


# ---------------------------------------------------------------------- what was found


@dataclass(frozen=True, slots=True)
class MainEffect:
    """What an axis alone does to the objective."""

    axis: str
    share: float
    """Of the variance over all combinations; the rest is that of other axes, of axes together
    (interactions), and of chance."""
    means: Mapping[str, float]
    """By value: over all combinations that have it."""


def main_effects(
    found: Mapping[str, float], levels: Mapping[str, Mapping[str, Any]]
) -> list[MainEffect]:
    """Return the effect of each axis, the largest first: a functional analysis of variance.

    Hutter, Hoos and Leyton-Brown, "An efficient approach for assessing hyperparameter importance",
    ICML 2014. All combinations were evaluated, so that the effects are means over them and need no
    model.

    Args:
        found: the objective by arm.
        levels: the value of each axis by arm.
    """
    arms = [arm for arm in found if arm in levels]
    if not arms:
        return []
    total = pvariance([found[arm] for arm in arms])
    effects = []
    for axis in levels[arms[0]]:
        groups: dict[str, list[float]] = {}
        for arm in arms:
            groups.setdefault(setting_text(levels[arm][axis]), []).append(found[arm])
        means = {value: fmean(own) for value, own in groups.items()}
        explained = pvariance([means[setting_text(levels[arm][axis])] for arm in arms])
        effects.append(MainEffect(axis, explained / total if total else 0.0, means))
    return sorted(effects, key=lambda effect: -effect.share)


def failed_values(
    failed: Collection[str], levels: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the axes that cannot be judged, and the values of each that failed where others did
    not: the means of its values are over different combinations.

    Args:
        failed: arms.
        levels: the value of each axis by arm.
    """
    found: dict[str, list[str]] = {}
    for axis in next(iter(levels.values()), ()):

        def others(arm: str, axis: str = axis) -> tuple[str, ...]:
            own = levels[arm].items()
            return tuple(setting_text(value) for name, value in own if name != axis)

        served = {others(arm) for arm in levels if arm not in failed}
        values = [
            setting_text(levels[arm][axis])
            for arm in levels
            if arm in failed and others(arm) in served
        ]
        if values:
            found[axis] = list(dict.fromkeys(values))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    search: Search
    rounds: Sequence[Round]
    effects: Sequence[MainEffect]
    """Of the first round, in which all combinations took part; without the axes not judged."""
    not_judged: Mapping[str, Sequence[str]]
    """Axes of which nothing is concluded, and their values that failed."""
    finalists: Sequence[PlannedArm]
    """The best first, by the fresh seeds; the base is among them."""
    scores: Mapping[str, float]
    """Of the finalists, with fresh seeds; higher is better."""
    results: Results
    """The runs of the finalists with fresh seeds."""
    differences: Sequence[Difference]
    """Of the objective: each finalist to the base."""
    problems: Mapping[str, str]
    """Why an arm was left out, by its label."""

    winner: PlannedArm
    """Of the finalists that fresh seeds cannot tell from the best, the one that changes least; the
    base, if it is among them."""

    @property
    def is_better(self) -> bool:
        """Whether fresh seeds show the winner better than the base, and nowhere worse."""
        own = [each for each in self.differences if each.arm == self.winner.arm.label]
        moved = [each.is_better for each in own if each.moved]
        return bool(moved) and all(moved)


def run_search(
    search: Search,
    arms: Sequence[PlannedArm],
    runner: Runner,
    advance: Callable[[int], None] = lambda count: None,
    num_blocks: Mapping[str, int] = MappingProxyType({}),
) -> SearchResult:
    """Find the best arms by successive halving, and run them again with fresh seeds.

    Args:
        arms: those of the search, the base first.

    Raises:
        EngineError: the base failed.
    """
    trials = Trials(search, runner, advance, num_blocks)
    rounds, best = _halve(arms, search, trials)
    finalists = [arms[0], *(one for one in best if one is not arms[0])]
    results = trials.run(finalists, range(search.seeds, search.seeds + search.confirm))
    found = _scores(results, search)
    trials.check_base(found)
    ordered = _best_first(finalists, found)
    levels, first = search.levels(arms), rounds[0].scores
    not_judged = failed_values(trials.problems, levels)
    return SearchResult(
        search=search,
        rounds=rounds,
        effects=main_effects(
            {arm: score for arm, score in first.items() if arm not in trials.problems},
            {
                arm: {axis: value for axis, value in own.items() if axis not in not_judged}
                for arm, own in levels.items()
            },
        ),
        not_judged=not_judged,
        finalists=ordered,
        scores=found,
        results=results,
        differences=differences(results, measures=[search.objective]),
        problems=trials.problems,
        winner=_simplest(ordered, results, search.objective),
    )


def _simplest(ordered: Sequence[PlannedArm], results: Results, objective: str) -> PlannedArm:
    """Return the arm that changes least among those that cannot be told from the first.

    As the rule of one standard error prefers the smaller tree (Breiman et al., "Classification and
    Regression Trees", 1984, section 3.4.3).
    """
    best = ordered[0].arm.label
    against_best = replace(results, arms=[replace(one.arm, compared_with=best) for one in ordered])
    found = differences(against_best, measures=[objective])
    worse = {each.arm for each in found if each.moved}
    return min(
        (one for one in ordered if one.arm.label not in worse),
        key=lambda one: len(one.arm.changes),
    )
