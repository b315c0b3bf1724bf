"""One search, from its arms to what it found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paged_plugins.lab.results.results import Results
from paged_plugins.lab.search.halving import Round, best_first, halve
from paged_plugins.lab.search.main_effects import MainEffect, main_effects
from paged_plugins.lab.search.rungs import Rung, rungs
from paged_plugins.lab.search.search_file import Search
from paged_plugins.lab.search.trials import Trials, request_counts, scores
from paged_plugins.lab.statistics.differences import Difference, differences
from paged_plugins.lab.statistics.sentences import is_better
from paged_plugins.lab.study.arm import BASE
from paged_plugins.lab.study.arms import PlannedArm
from paged_plugins.lab.tasks.run_tasks import Runner


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
