"""The load and the cache of a study as fractions of what its first arm can serve, and can use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from paged_plugins.workloads.distinct_blocks import DistinctBlocks
from paged_plugins.workloads.spec import DEFAULT_REQUESTS, WorkloadSpec


def fitted(
    study: Study,
    runner: Runner,
    advance: Advance = lambda count: None,
    *,
    num_seeds: int = CAPACITY_SEEDS,
) -> Study:
    """Return a study whose workloads have the rates, and whose runs the blocks, that are asked for.

    Both are fractions of what the first arm does without a limit of blocks, if a part of these is
    asked for: first its rate is chosen, then the blocks at that rate. With a load, runs have as
    many requests as a capacity takes, if the workload has fewer.

    Args:
        num_seeds: with which what can be served is measured.

    Raises:
        SettingsError: a workload has no rate.
        EngineError: a run failed.
    """
    workloads, blocks, chosen = [], dict[str, int](), list[Mapping[str, Any]]()
    first = study.arms[0]
    unwatched = first.settings.model_copy(update={"observers": ()})
    tried = replace(study, arms=[replace(first, settings=unwatched)])
    for written in study.workloads:
        for workload, load in _loaded(tried, written, runner, advance, num_seeds):
            told: dict[str, Any] = {"workload": workload.name, **load}
            if study.chooses_blocks:
                told["cache"] = _cut(tried, workload, runner, advance)
                blocks[workload.name] = told["cache"]["num_blocks"]
            workloads.append(workload)
            chosen.append(told)
    return replace(study, workloads=workloads, num_blocks=blocks, chosen=chosen)


def _loaded(
    study: Study, workload: WorkloadSpec, runner: Runner, advance: Advance, num_seeds: int
) -> Iterator[tuple[WorkloadSpec, Mapping[str, Any]]]:
    """Yield a workload at each load, with what there is to tell of that: one search finds all."""
    fractions = study.fractions.load
    if not fractions:
        yield workload, {}
        return
    searched = Searched(
        settings=study.arms[0].settings,
        workload=workload,
        num_replicas=study.num_replicas,
        is_unlimited=study.chooses_blocks,
        files=study.files_of(study.arms[0].arm.label, workload),
    )
    seeds = capacity_seeds(workload, num_seeds)
    found = find_capacity(searched, seeds, runner, advance)
    for fraction in fractions:
        rate = float(f"{fraction * found.rate:.4g}")
        own = workload.requests
        if not (workload.trace and own is None):
            own = max(ceil(found.num_requests * rate / found.rate), own or DEFAULT_REQUESTS)
        told = {"fraction": fraction, "rate": rate, "requests": own, "capacity": found.document()}
        name = f"{workload.name} at load {fraction:g}" if len(fractions) > 1 else workload.name
        faster = workload.faster(rate / found.written_rate)
        yield faster.model_copy(update={"requests": own, "name": name}), {"load": told}


def _cut(study: Study, workload: WorkloadSpec, runner: Runner, advance: Advance) -> dict[str, Any]:
    settings, peak, largest, distinct = study.arms[0].settings, 0, 0, 0
    tasks = []
    for seed in study.seeds:
        tasks.append(
            Task(
                arm=study.arms[0].arm.label,
                settings=unlimited(settings, workload, seed),
                workload=workload,
                seed=seed,
                num_replicas=study.num_replicas,
                files=study.files_of(study.arms[0].arm.label, workload),
            )
        )
        largest = max(largest, blocks_of(workload, seed, settings.block_size)[1])
        blocks = DistinctBlocks(settings.block_size)
        for first in workload.build().draw(seed):
            blocks.add(first)
        distinct = max(distinct, len(blocks))
    for ran in runner(tasks):
        if ran.record is None:
            raise EngineError(f"{ran.task} failed: {ran.problem}")
        if ran.record.first_told is not None:
            raise EngineError(f"{ran.task}: a request failed: {ran.record.first_told}")
        peak = max(peak, ran.record.totals.peak_blocks)
        advance(1)
    of_peak, of_distinct = study.fractions.cache, study.fractions.working_set
    fraction, whole = (of_peak, peak) if of_peak is not None else (of_distinct, distinct)
    num_blocks = part_of(fraction or 0.0, whole, largest, settings.watermark)
    return {
        "fraction": fraction,
        "of": "peak_blocks" if of_peak is not None else "distinct_blocks",
        "peak_blocks": peak,
        "distinct_blocks": distinct,
        "num_blocks": num_blocks,
    }


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
            num_blocks, peak = cache["num_blocks"], cache["peak_blocks"]
            distinct = cache.get("distinct_blocks", 0)  # none in a folder of older results
            whole = cache[cache.get("of", "peak_blocks")]
            is_raised = num_blocks > ceil(cache["fraction"] * whole)
            told.append(
                f"{name}: {counted(num_blocks, 'block')}, {num_blocks / max(1, peak):.3g} of the "
                f"{peak:,} that {arm} held at once without a limit"
                + (
                    f", {num_blocks / distinct:.3g} of the {distinct:,} distinct ones of the "
                    "workload"
                    if distinct
                    else ""
                )
                + (", raised to what the largest request needs" if is_raised else "")
            )
    return told


def _without(each: Mapping[str, Any]) -> str:
    return " without a limit of blocks" if "cache" in each else ""


def rate_unit(capacity: Mapping[str, Any]) -> str:
    """Return what a rate counts."""
    return "first requests/s" if capacity["has_followers"] else "requests/s"


def capacity_text(capacity: Mapping[str, Any]) -> str:
    """Return a capacity with its interval, of a document: ``19.4 [19.0, 19.8], 4 seeds``.

    Of a trace that was not looked at as a whole, also by how many of its requests.
    """
    ends = capacity["low"], capacity["high"]
    interval = "" if None in ends else " [{:.4g}, {:.4g}]".format(*ends)
    found = f"{capacity['rate']:.4g}{interval}, {counted(len(capacity['rates']), 'seed')}"
    num_looked_at, num_left = capacity["requests"], capacity.get("left", 0)  # none in older results
    if num_left:
        found += f", by the first {num_looked_at:,} of {num_looked_at + num_left:,} requests"
    return found
