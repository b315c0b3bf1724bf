"""A short search for a load, or a cache, under which a component has a choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paged_core.errors import EngineError, SettingsError
from paged_plugins.lab.load.fractions import fitted
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.asked import asked
from paged_plugins.lab.study.arms import PlannedArm
from paged_plugins.lab.study.study import Fractions, Study
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.lab.tasks.task import Task
from paged_plugins.progress import counted

_CACHES = (
    *(Fractions(cache=part) for part in (0.8, 0.5, 0.2)),
    Fractions(load=(1.1,), cache=0.5),
)
_LOADS = (Fractions(load=(0.7, 0.9, 1.1, 1.5)),)
_TRIED = {
    "admission": _LOADS,
    "scheduler": _LOADS,
    "queue_order": _LOADS,
    "victim": _CACHES,
    "preemption": _CACHES,
    "evictor": tuple(Fractions(working_set=part) for part in (0.8, 0.5, 0.2)),
}
"""Fractions that are tried, by slot, the mildest first."""
_MOST_REPLICAS = 8
"""Replicas of a cluster for which a load is searched: that of more takes long."""


def with_remedies(study: Study, results: Results, runner: Runner) -> Results:
    """Return results that say, of each component that never had a choice, what would give it one.

    Orders, schedulers and admissions need a load, evictors a smaller cache, victims and preemption
    one that is too small for what runs at once. All is tried with one seed; nothing is said where
    it is of no use.
    """
    remedies = dict(results.remedies)
    for each in asked(results):
        place = each.workload, each.slot
        if each.never is not None and place not in remedies:
            base = next(task for task in study.tasks() if task.place[:2] == (each.arm, place[0]))
            remedies[place] = _remedy(study, base, each.slot, runner)
    return replace(results, remedies=remedies)


def _remedy(study: Study, run: Task, slot: str, runner: Runner) -> str:
    arm = next(one.arm for one in study.arms if one.arm.label == run.arm)
    one = replace(
        study,
        arms=[PlannedArm(arm, run.settings)],
        workloads=[run.workload],
        seeds=[run.seed],
        num_blocks={},
    )
    for fractions in _TRIED.get(slot, ()):
        if fractions.load and (study.num_replicas or 1) > _MOST_REPLICAS:
            continue
        try:
            trial = fitted(replace(one, fractions=fractions), runner, num_seeds=1)
        except (EngineError, SettingsError):
            continue  # it cannot be chosen here: all requests arrive at once, or some are refused
        records = {ran.task.workload.name: ran.record for ran in runner(list(trial.tasks()))}
        for told in trial.chosen:
            record = records.get(told["workload"])
            count = record and record.asked.get(slot)
            if count and count.choices:
                times = counted(count.choices, "time")
                return f"with {_options(told)} it has a choice {times} in a run"
    return ""


def _options(told: Mapping[str, Any]) -> str:
    """Return options of ``compare`` that choose a load and a cache."""
    load, cache = told.get("load"), told.get("cache")
    option = "--cache" if cache and cache["of"] == "peak_blocks" else "--working-set"
    given = (("--load", load), (option, cache))
    return " ".join(f"{name} {each['fraction']:g}" for name, each in given if each)
