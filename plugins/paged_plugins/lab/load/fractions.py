"""The load and the cache of a study as fractions of what its first arm can serve, and can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from paged_core.errors import EngineError
from paged_plugins.lab.load.capacity import (
    CAPACITY_SEEDS,
    Searched,
    blocks_of,
    capacity_seeds,
    find_capacity,
    part_of,
    unlimited,
)
from paged_plugins.lab.results.results import Advance
from paged_plugins.lab.study.study import Study
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.progress import counted
from paged_plugins.workloads.spec import DEFAULT_REQUESTS, WorkloadSpec


def fitted(study: Study, runner: Runner, advance: Advance = lambda count: None) -> Study:
    """Return a study whose workloads have the rates, and whose runs the blocks, that are asked for.

    Both are fractions of what the first arm does without a limit of blocks, if a part of these is
    asked for: first its rate is chosen, then the blocks at that rate. With a load, runs have as
    many requests as a capacity takes, if the workload has fewer.

    Raises:
        SettingsError: a workload has no rate.
        EngineError: a run failed.
    """
    fractions = study.fractions
    workloads, blocks, chosen = [], dict[str, int](), list[Mapping[str, Any]]()
    for workload in study.workloads:
        told: dict[str, Any] = {"workload": workload.name}
        if fractions.load is not None:
            workload, load = _loaded(study, workload, fractions.load, runner, advance)
            told |= load
        if fractions.cache is not None:
            cache = _cut(study, workload, fractions.cache, runner, advance)
            blocks[workload.name] = cache["num_blocks"]
            told["cache"] = cache
        workloads.append(workload)
        chosen += [told] if len(told) > 1 else []
    return replace(study, workloads=workloads, num_blocks=blocks, chosen=chosen)


def _loaded(
    study: Study, workload: WorkloadSpec, fraction: float, runner: Runner, advance: Advance
) -> tuple[WorkloadSpec, Mapping[str, Any]]:
    searched = Searched(
        settings=study.arms[0].settings,
        workload=workload,
        num_replicas=study.num_replicas,
        is_unlimited=study.fractions.cache is not None,
    )
    seeds = capacity_seeds(workload, CAPACITY_SEEDS)
    found = find_capacity(searched, seeds, runner, advance)
    rate = float(f"{fraction * found.rate:.4g}")
    faster = workload.faster(rate / found.written_rate)
    own = workload.requests
    if not (workload.trace and own is None):
        own = max(ceil(found.num_requests * rate / found.rate), own or DEFAULT_REQUESTS)
    told = {"fraction": fraction, "rate": rate, "requests": own, "capacity": found.document()}
    return faster.model_copy(update={"requests": own}), {"load": told}


def _cut(
    study: Study, workload: WorkloadSpec, fraction: float, runner: Runner, advance: Advance
) -> dict[str, Any]:
    settings, peak, largest = study.arms[0].settings, 0, 0
    tasks = []
    for seed in study.seeds:
        tasks.append(
            Task(
                arm=study.arms[0].arm.label,
                settings=unlimited(settings, workload, seed),
                workload=workload,
                seed=seed,
                num_replicas=study.num_replicas,
            )
        )
        largest = max(largest, blocks_of(workload, seed, settings.block_size)[1])
    for ran in runner(tasks):
        if ran.record is None:
            raise EngineError(f"{ran.task} failed: {ran.problem}")
        if ran.record.first_told is not None:
            raise EngineError(f"{ran.task}: a request failed: {ran.record.first_told}")
        peak = max(peak, ran.record.totals.peak_blocks)
        advance(1)
    num_blocks = part_of(fraction, peak, largest, settings.watermark)
    return {"fraction": fraction, "peak_blocks": peak, "num_blocks": num_blocks}


def choice_sentences(chosen: Sequence[Mapping[str, Any]], arm: str) -> list[str]:
    """Say which rate and which blocks were chosen for each workload, and of what they are a part.

    Args:
        arm: the first one.
    """
    told = []
    for each in chosen:
        name = each["workload"]
        if load := each.get("load"):
            told.append(
                f"{name}: {load['rate']:g} {rate_unit(load['capacity'])}, "
                f"{load['fraction']:g} of what {arm} can serve{_without(each)}: "
                f"{capacity_text(load['capacity'])}"
                + (f"; {load['requests']:,} requests a run" if load["requests"] else "")
            )
        if cache := each.get("cache"):
            is_raised = cache["num_blocks"] > ceil(cache["fraction"] * cache["peak_blocks"])
            told.append(
                f"{name}: {counted(cache['num_blocks'], 'block')}, {cache['fraction']:g} of the "
                f"{cache['peak_blocks']:,} that {arm} held at most without a limit"
                + (", raised to what the largest request needs" if is_raised else "")
            )
    return told


def _without(each: Mapping[str, Any]) -> str:
    return " without a limit of blocks" if "cache" in each else ""


def rate_unit(capacity: Mapping[str, Any]) -> str:
    """Return what a rate counts."""
    return "first requests/s" if capacity["has_followers"] else "requests/s"


def capacity_text(capacity: Mapping[str, Any]) -> str:
    """Return a capacity with its interval, of a document: ``19.4 [19.0, 19.8], 4 seeds``."""
    ends = capacity["low"], capacity["high"]
    interval = "" if None in ends else " [{:.4g}, {:.4g}]".format(*ends)
    return f"{capacity['rate']:.4g}{interval}, {counted(len(capacity['rates']), 'seed')}"
