"""Results made of functions, for tests of what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paged_plugins.lab.results import Arm, Results, RunResult

Draw = Callable[[np.random.Generator], Mapping[str, float]]


def results_of(
    arms: Mapping[str, Callable[[dict[str, float], np.random.Generator], Mapping[str, float]]],
    base: Draw,
    *,
    seeds: Sequence[int] = range(6),
    workloads: Sequence[str] = ("chat",),
    axis: str = "evictor",
) -> Results:
    """Return the results of a base, and of arms that make their measures of those of the base."""
    runs = []
    for workload in workloads:
        for seed in seeds:
            random = np.random.default_rng([seed, len(workload)])
            measured = dict(base(random))
            runs.append(RunResult(arm="base", workload=workload, seed=seed, measures=measured))
            runs += [
                RunResult(
                    arm=f"{axis}={name}",
                    workload=workload,
                    seed=seed,
                    measures=make(dict(measured), random),
                )
                for name, make in arms.items()
            ]
    varied = [Arm(label=f"{axis}={name}", changes={axis: name}, axis=axis) for name in arms]
    return Results(
        arms=[Arm(label="base"), *varied], workloads=list(workloads), seeds=list(seeds), runs=runs
    )
