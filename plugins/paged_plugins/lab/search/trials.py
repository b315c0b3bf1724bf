"""Runs arms of a search on parts of its workloads; what was run once is not run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import fmean

from paged_plugins.lab.measures.run_measures import measures
from paged_plugins.lab.results.results import RunResult
from paged_plugins.lab.search.search_file import Search
from paged_plugins.lab.study.arms import PlannedArm
from paged_plugins.lab.tasks.run_tasks import Runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.workloads.spec import WorkloadSpec


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
