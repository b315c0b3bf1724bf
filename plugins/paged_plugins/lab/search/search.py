"""A search: successive halving over all combinations, and which settings mattered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, pvariance
from typing import Any

from paged_core.errors import EngineError
from paged_plugins.counted import counted
from paged_plugins.lab.measures import measures
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.statistics.differences import Difference, differences
from paged_plugins.lab.statistics.sentences import is_better
from paged_plugins.lab.study.arms import BASE, PlannedArm, setting_text
from paged_plugins.lab.study.study import Search
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.workloads.spec import WorkloadSpec


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
    """Return the effect of each axis, the largest first.

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


MIN_REQUESTS = 40
"""The least work by which arms are told apart, in requests of a workload."""


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


def rungs(
    num_arms: int, *, finalists: int, reduction: int, num_seeds: int, num_requests: int
) -> list[Rung]:
    """Return the rounds, the last with all seeds and requests.

    Work is spared on seeds first: fewer seeds are noisier, but fewer requests may also be a
    different workload, one that never fills the cache.

    Args:
        num_requests: of the shortest workload.
    """
    cuts = 0
    while num_arms >= finalists * reduction ** (
        cuts + 1
    ) and num_seeds * num_requests >= MIN_REQUESTS * reduction ** (cuts + 1):
        cuts += 1
    made = []
    for number in range(cuts + 1):
        work = num_seeds / reduction ** (cuts - number)
        made.append(
            Rung(
                num_arms=ceil(num_arms / reduction**number),
                num_seeds=max(1, round(work)),
                share=min(1.0, work),
            )
        )
    return made


class Trials:
    """The runs of a search.

    Args:
        advance: called with the number of runs that ended, or were known already.
    """

    def __init__(
        self, search: Search, runner: Runner, advance: Callable[[int], None] = lambda count: None
    ) -> None:
        self._search = search
        self._runner = runner
        self._advance = advance
        self._known: dict[tuple[str, str, int, int], RunResult] = {}
        self.problems: dict[str, str] = {}
        """Why an arm cannot be judged, by its label."""
        self._num_requests = request_counts(search)

    def run(
        self, arms: Sequence[PlannedArm], seeds: Sequence[int], share: float = 1.0
    ) -> list[RunResult]:
        """Return the results of arms on a share of the requests of each workload.

        An arm whose run fails is left out from then on, see :attr:`problems`.
        """
        places = {}
        for seed in seeds:
            for workload in self._search.workloads:
                part = self._part(workload, share)
                for one in arms:
                    task = Task(arm=one.arm.label, settings=one.settings, workload=part, seed=seed)
                    places[*task.place, part.requests or 0] = task
        new = [task for place, task in places.items() if place not in self._known]
        self._advance(len(places) - len(new))
        for ran in self._runner(new):
            self._advance(1)
            label, name, seed = ran.task.place
            if ran.record is None:
                self.problems.setdefault(label, ran.problem or "it gave no result")
                continue
            found = measures(ran.record, self._search.slo)
            if self._search.objective not in found:
                self.problems.setdefault(label, f"it has no {self._search.objective}")
            self._known[label, name, seed, ran.task.workload.requests or 0] = RunResult(
                arm=label, workload=name, seed=seed, measures=found
            )
        return [self._known[place] for place in places if place[0] not in self.problems]

    def _part(self, workload: WorkloadSpec, share: float) -> WorkloadSpec:
        num_requests = max(1, ceil(share * self._num_requests[workload.name]))
        return workload.model_copy(update={"requests": num_requests})


def scores(results: Sequence[RunResult], search: Search, base: str) -> Mapping[str, float]:
    """Return how good each arm is: the objective, higher is better.

    It is averaged over seeds, and over workloads in units of the base's own (if there are several,
    and the base's is not 0), so that the workload with the largest numbers does not decide alone.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for run in results:
        own = values.setdefault(run.arm, {}).setdefault(run.workload, [])
        own.append(run.measures[search.objective])
    means = {
        arm: {name: fmean(own) for name, own in found.items()} for arm, found in values.items()
    }
    units = {
        name: abs(mean) or 1.0 if len(search.workloads) > 1 else 1.0
        for name, mean in means.get(base, {}).items()
    }
    return {
        arm: search.sign * fmean(mean / units.get(name, 1.0) for name, mean in found.items())
        for arm, found in means.items()
    }


def request_counts(search: Search) -> dict[str, int]:
    """Return how many requests each workload has, those that follow others among them."""
    return {one.name: one.requests or _drawn(one) for one in search.workloads}


def _drawn(workload: WorkloadSpec) -> int:
    return sum(sum(1 for _ in first.family()) for first in workload.build().draw(0))


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found."""

    rung: Rung
    scores: Mapping[str, float]
    """By label; higher is better. Without the arms that failed."""


def halve(
    arms: Sequence[PlannedArm], rungs: Sequence[Rung], search: Search, trials: Trials
) -> tuple[list[Round], list[PlannedArm]]:
    """Return the rounds, and the finalists, the best first.

    The base, which comes first, is run in every round: several workloads are averaged in its units.

    Raises:
        EngineError: the base failed, or all others.
    """
    base, rounds, kept = arms[0], [], list(arms)
    for number, rung in enumerate(rungs):
        taking_part = [base, *(one for one in kept if one is not base)]
        found = scores(trials.run(taking_part, range(rung.num_seeds), rung.share), search, BASE)
        if BASE not in found:
            raise EngineError(f"the base failed: {trials.problems[BASE]}")
        rounds.append(Round(rung, found))
        last = number + 1 == len(rungs)
        size = search.finalists if last else rungs[number + 1].num_arms
        kept = best_first([one for one in kept if one.arm.label in found], found)[:size]
    return rounds, kept


def best_first(arms: Sequence[PlannedArm], found: Mapping[str, float]) -> list[PlannedArm]:
    """Return arms by their score; among equals, one that changes less comes first."""
    return sorted(arms, key=lambda one: (-found[one.arm.label], len(one.arm.changes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found."""

    search: Search
    rounds: Sequence[Round]
    effects: Sequence[MainEffect]
    """Of the first round, in which all combinations took part."""
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
        moved = [is_better(each) for each in own if each.moved]
        return bool(moved) and all(moved)


def planned_rungs(search: Search, num_arms: int) -> list[Rung]:
    """Return the rounds of a search."""
    return rungs(
        num_arms,
        finalists=search.finalists,
        reduction=search.reduction,
        num_seeds=search.seeds,
        num_requests=min(request_counts(search).values()),
    )


def num_runs(search: Search, planned: Sequence[Rung]) -> int:
    """Return how many runs a search takes at most, those that are known already among them."""
    all_arms = planned[0].num_arms
    rounds = sum(min(all_arms, rung.num_arms + 1) * rung.num_seeds for rung in planned)
    return (rounds + (search.finalists + 1) * search.confirm) * len(search.workloads)


def run_search(
    search: Search,
    arms: Sequence[PlannedArm],
    runner: Runner,
    advance: Callable[[int], None] = lambda count: None,
) -> SearchResult:
    """Find the best arms by successive halving, and run them again with fresh seeds.

    Args:
        arms: those of the search, the base first.

    Raises:
        EngineError: the base failed.
    """
    trials = Trials(search, runner, advance)
    planned = planned_rungs(search, len(arms))
    rounds, best = halve(arms, planned, search, trials)
    base = arms[0]
    finalists = [base, *(one for one in best if one is not base)]
    seeds = range(search.seeds, search.seeds + search.confirm)
    runs = trials.run(finalists, seeds)
    found = scores(runs, search, BASE)
    finalists = [one for one in finalists if one.arm.label in found]
    ordered = best_first(finalists, found)
    results = Results(
        arms=[one.arm for one in finalists],
        workloads=[workload.name for workload in search.workloads],
        seeds=seeds,
        runs=runs,
        slo=search.slo,
    )
    return SearchResult(
        search=search,
        rounds=rounds,
        effects=main_effects(rounds[0].scores, search.levels(arms)),
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
    against_best = dataclasses.replace(
        results, arms=[dataclasses.replace(one.arm, compared_with=best) for one in ordered]
    )
    found = differences(against_best, measures=[objective])
    worse = {each.arm for each in found if each.moved}
    return min(
        (one for one in ordered if one.arm.label not in worse),
        key=lambda one: len(one.arm.changes),
    )
