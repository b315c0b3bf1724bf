"""The capacity of an engine, or of a cluster: the highest rate of requests that it can serve."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar

import numpy as np

from paged_core.errors import EngineError, SettingsError
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.load.steady import SteadyState
from paged_plugins.lab.measures import value_text
from paged_plugins.lab.results.results import Advance
from paged_plugins.lab.simulation import MAX_BLOCKS
from paged_plugins.lab.statistics.differences import critical_value
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.workloads.spec import WorkloadSpec


def unlimited(settings: EngineSettings, workload: WorkloadSpec, seed: int = 0) -> EngineSettings:
    """Return settings with as many blocks as all requests of a workload would fill at once."""
    total, _ = blocks_of(workload, seed, settings.block_size)
    # as many again may be of the host
    return settings.model_copy(update={"num_blocks": min(total, MAX_BLOCKS // 2)})


def blocks_of(workload: WorkloadSpec, seed: int, block_size: int) -> tuple[int, int]:
    """Return the blocks of all requests of a workload, with none shared, and of the largest."""
    total = largest = 0
    for first in workload.build().draw(seed):
        for request, prompt in first.whole_prompts():
            blocks = request.n * ceil((prompt + request.output) / block_size)
            total, largest = total + blocks, max(largest, blocks)
    return total, largest


def part_of(fraction: float, peak: int, largest: int, watermark: float) -> int:
    """Return a part of the peak of blocks, rounded up; the largest request fits in any case.

    Args:
        watermark: share of the blocks that is kept free when a request is admitted.
    """
    return max(ceil(fraction * peak), ceil(largest / (1 - watermark)))


CAPACITY_SEEDS = 4
"""Seeds of a load in a study; ``lab capacity`` uses as many unless it is told otherwise."""
_CONFIDENCE = 0.95
_ENOUGH = 2 / 3
"""Share of the length that a run should have."""
_LEAST_REQUESTS, _LEAST_FIRST = 400, 100
"""Requests of a run at least, and those of them that follow no other."""
_LEAST_OF_TRACE = 5_000
"""Likewise of a trace, or all that it has: its first ones may be unlike the others."""
_OVERLOAD = 1.15
"""The rate of a run whose served rate is the capacity, by that capacity."""
_LEAST_OVERLOAD, _MOST_OVERLOAD = 1.07, 1.3
_GROWTH = 2.0
"""Growth of the rate, while it is not known which is too high."""
_PRECISION = 1.02
"""Precision of the highest rate within limits: the next higher one that was tried, by it."""
_LOWEST = 1 / 64
"""Share of the rate that can be served, below which no limit is tried."""
_MOST_RUNS = 40
"""Runs of a seed at most; far fewer are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Rate of first requests that can be served, each with all that follow it, in a second."""

    rate: float
    """The geometric mean over the seeds."""
    low: float | None
    """Lower end of the 95% confidence interval; ``None``: one seed, or all seeds give the same."""
    high: float | None
    """Upper end; with limits at most that of the capacity without."""
    rates: Mapping[int, float]
    """By seed."""
    written_rate: float
    """Rate of the workload as it is written."""
    num_requests: int
    """Requests of a run that was long enough to be steady."""
    num_left: int
    """Requests of a trace after those of such a run, which were not looked at."""
    has_followers: bool
    """True if requests follow others."""
    num_runs: int
    """Runs that the search took."""

    @property
    def needed(self) -> tuple[int, int, int]:
        """Replicas of what was searched that serve the workload as it is written, if its requests
        are dealt out evenly; with the ends of the interval of the rate, fewest first."""
        rates = (self.rate, self.high or self.rate, self.low or self.rate)
        count, fewest, most = (ceil(self.written_rate / rate - 1e-9) for rate in rates)
        return count, fewest, most

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        count, fewest, most = self.needed
        return {
            "rate": self.rate,
            "low": self.low,
            "high": self.high,
            "rates": {str(seed): rate for seed, rate in self.rates.items()},
            "written_rate": self.written_rate,
            "needed": {"count": count, "low": fewest, "high": most},
            "requests": self.num_requests,
            "left": self.num_left,
            "has_followers": self.has_followers,
            "runs": self.num_runs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Settings and workload of which the rate of requests is searched."""

    settings: EngineSettings
    workload: WorkloadSpec
    num_replicas: int | None = None
    is_unlimited: bool = False
    """With as many blocks as could ever be used, instead of those of the settings."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The highest value of each measure, in its unit; none: what can be served."""
    files: Mapping[Path, str] | None = None
    """As in a task."""


def find_capacity(
    searched: Searched,
    seeds: Sequence[int],
    runner: Runner,
    advance: Advance = lambda count: None,
) -> Capacity:
    """Find the highest rate, for each seed alone.

    Without limits it is what is served in the second half of a run in which requests arrive 7 to
    30% faster than that, so that the engine is never short of them: below it queues do not grow,
    above it they do. With limits it is the highest rate, not above that one, at which the requests
    that arrive in the second half are within all of them; the next higher rate that was tried, at
    which they are not, is 2% higher at most.

    Raises:
        SettingsError: the workload has no rate, or the limits are met at none.
        EngineError: a run failed, or requests in it.
    """
    written = written_rate(searched.workload)
    first, *others = seeds
    start = _Trial(written, _least_requests(searched.workload) * (searched.num_replicas or 1))
    found = {first: _SeedSearch(searched, first, start, written, is_known=False)}
    num_runs = _search(found, runner, advance)
    start = found[first].served_at
    more = {seed: _SeedSearch(searched, seed, start, written, is_known=True) for seed in others}
    num_runs += _search(more, runner, advance)
    rates = {seed: one.found for seed, one in (found | more).items()}
    low, high = _interval([*rates.values()])
    served = [one.served for one in (found | more).values()]
    num_requests = found[first].num_requests
    if high is not None:
        high = min(high, _interval(served)[1] or served[0])
    return Capacity(
        rate=exp(fmean(map(log, rates.values()))),
        low=low,
        high=high,
        rates=rates,
        written_rate=written,
        num_requests=num_requests,
        num_left=max(0, _num_requests(searched.workload) - num_requests),
        has_followers=found[first].has_followers,
        num_runs=num_runs,
    )


def written_rate(workload: WorkloadSpec) -> float:
    """Return the rate of a workload as it is written; SettingsError if it has none."""
    rate = workload.rate()
    if rate is None:
        raise SettingsError(
            f"workload {workload.name}: all of its requests arrive at once, so that it has no "
            "rate; give it `arrivals`, such as `arrivals: {poisson: {rate: 1}}`"
        )
    return rate


def _least_requests(workload: WorkloadSpec) -> int:
    """Return the requests of a run at least; a trace may have fewer."""
    if not workload.trace:
        return _LEAST_REQUESTS
    return max(_LEAST_REQUESTS, workload.requests or _LEAST_OF_TRACE)


def _num_requests(workload: WorkloadSpec) -> int:
    """Return the requests of a trace; of what is drawn, which has no end, 0."""
    if not workload.trace:
        return 0
    return sum(1 for first in workload.build().draw(0) for _ in first.family())


def capacity_seeds(workload: WorkloadSpec, num_seeds: int) -> range:
    """Return the seeds that a capacity is measured with: one where seeds draw nothing."""
    return range(1 if workload.draws_nothing else num_seeds)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A run that a search asks for."""

    rate: float
    num_requests: int


def _search(searches: Mapping[int, _SeedSearch], runner: Runner, advance: Advance) -> int:
    """Run searches, by their seed, beside each other to their end; return the number of runs."""
    num_runs = 0
    while left := [each for each in searches.values() if not each.is_done]:
        for ran in runner([each.task() for each in left]):
            task = ran.task
            if ran.record is None:
                raise EngineError(f"{task} failed: {ran.problem}")
            if ran.record.first_told is not None:
                raise EngineError(f"{task}: a request failed: {ran.record.first_told}")
            searches[task.seed].learn(SteadyState.of(ran.record, task.workload, task.seed))
            num_runs += 1
            advance(1)
    return num_runs


class _SeedSearch:
    """The search with one seed, one run after the other."""

    def __init__(
        self, searched: Searched, seed: int, start: _Trial, written: float, *, is_known: bool
    ) -> None:
        self.served_at = start
        """The run by which the capacity without limits is known, in the end."""
        self.found = self.served = 0.0
        """Rate that was found, and the capacity without limits, in the end."""
        self.is_done = False
        self.has_followers = False
        self.num_requests = 0
        """Requests of the longest run."""
        self._searched = searched
        self._seed = seed
        self._written = written
        self._trials = self._sought(start, is_known)
        self._next = next(self._trials)

    def task(self) -> Task:
        """Return the next run."""
        trial, searched = self._next, self._searched
        faster = searched.workload.faster(trial.rate / self._written)
        workload = faster.model_copy(update={"requests": trial.num_requests})
        settings = searched.settings
        return Task(
            arm=f"{trial.rate:.4g} requests/s",
            settings=unlimited(settings, workload) if searched.is_unlimited else settings,
            workload=workload,
            seed=self._seed,
            num_replicas=searched.num_replicas,
            files=searched.files,
        )

    def learn(self, seen: SteadyState) -> None:
        """Learn what it showed."""
        self.has_followers |= seen.num_first < seen.num_requests
        self.num_requests = max(self.num_requests, seen.num_requests)
        try:
            self._next = self._trials.send(seen)
        except StopIteration:
            self.is_done = True

    def _sought(self, start: _Trial, is_known: bool) -> _Trials[None]:
        workload = self._searched.workload
        self.served_at, self.served = yield from _served(
            start, workload.name, _least_requests(workload), is_known=is_known
        )
        self.found = self.served
        if limits := self._searched.limits:
            most = _Trial(self.found, self.served_at.num_requests)
            self.found = yield from _within_limits(most, limits)


_Found = TypeVar("_Found")
_Trials = Generator[_Trial, SteadyState, _Found]


def _served(
    trial: _Trial, name: str, least: int, *, is_known: bool
) -> _Trials[tuple[_Trial, float]]:
    """Find what can be served, and the run that shows it.

    Args:
        least: requests of a run.
        is_known: the first run is known to be one of more than can be served.
    """
    kept, kept_served, too_much = 0.0, 0.0, trial.rate if is_known else inf
    for _ in range(_MOST_RUNS):
        seen = yield trial
        rate, size = trial.rate, seen.num_requests / seen.num_first
        length = seen.num_first / max(_LEAST_FIRST, seen.settling * rate)
        if length < _ENOUGH and seen.num_requests < trial.num_requests:
            raise SettingsError(
                f"workload {name} has {seen.num_requests:,} requests: at {rate:.3g} a second they "
                "are too few to load the engine; give a longer one"
            )
        if length < _ENOUGH / 2 or not seen.served:
            rate = min(rate, 2 * seen.overall)
        elif too_much == inf and seen.overload <= _MOST_OVERLOAD:  # a little more may be chance
            if seen.overload < _LEAST_OVERLOAD:
                kept, kept_served = rate, seen.served
            rate *= _GROWTH
        elif max(seen.overload, rate / seen.served) < _LEAST_OVERLOAD:
            kept, kept_served = max((kept, kept_served), (rate, seen.served))
            rate *= _OVERLOAD
        elif rate > _MOST_OVERLOAD * seen.served:
            too_much = min(too_much, rate)
            rate = _OVERLOAD * seen.served
        elif length >= _ENOUGH:
            return trial, seen.served
        if rate <= kept:
            # more than it keeps up with makes it slower
            return _Trial(_OVERLOAD * kept_served, trial.num_requests), kept_served
        needed = size * max(_LEAST_FIRST, seen.settling * rate)
        trial = _Trial(rate, max(least, ceil(needed)))
    raise EngineError(f"workload {name}: no rate is found that the engine just serves")


def _within_limits(most: _Trial, limits: Mapping[str, float]) -> _Trials[float]:
    """Find the highest rate at which all limits hold, that of ``most`` or a lower one."""
    trial, high, low = most, 0.0, 0.0
    while not high or high > _PRECISION * low:
        seen = (yield trial).measures()
        missing = [name for name in limits if name not in seen]
        if missing:
            deadlines = "; give its requests a `deadline`" * (missing[0] == "missed_deadlines")
            raise SettingsError(
                f"--limit {missing[0]}: no request of the workload has it{deadlines}"
            )
        broken = [name for name, limit in limits.items() if seen[name] > limit]
        if not broken:
            low = trial.rate
            if not high:
                break
        else:
            high = trial.rate
            if high < _LOWEST * most.rate:
                name = broken[0]
                raise SettingsError(
                    f"--limit {name}: at {high:.3g} requests/s it is {value_text(name, seen[name])}"
                    f", and {value_text(name, limits[name])} is the limit: no rate is low enough"
                )
        trial = _Trial(sqrt(low * high) if low else high / _GROWTH, most.num_requests)
    return low


def _interval(rates: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the confidence interval of the geometric mean of the capacities of all draws."""
    logs = [log(each) for each in rates]
    if len(rates) < 2 or stdev(logs) < 1e-9:
        return None, None
    factor = critical_value(np.array(logs)[:, None], _CONFIDENCE)
    half, mean = factor * stdev(logs) / sqrt(len(logs)), fmean(logs)
    return exp(mean - half), exp(mean + half)
