"""The result of a search as tables, a sentence, settings, and plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import yaml

from paged_core.cli.output import echo, print_table
from paged_plugins.lab.measures import MEASURES
from paged_plugins.lab.search.search import SearchResult
from paged_plugins.lab.statistics.phrases import (
    Phrase,
    change_text,
    interval_text,
    listed,
    value_text,
)
from paged_plugins.lab.study.arms import BASE


def settings_yaml(base: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Return settings in YAML: those of a base, and what an arm changes; keys may be dotted."""
    made: dict[str, Any] = {}
    for key, value in [*base.items(), *changes.items()]:
        _put(made, key, value)
    return yaml.safe_dump(made, sort_keys=False)


def _put(made: dict[str, Any], key: str, value: Any) -> None:
    """Set a setting, as a layer does above others: another component drops the options."""
    name, _, option = key.partition(".")
    before = made.get(name, {})
    table = dict(before) if isinstance(before, Mapping) else {"name": before}
    if option:
        made[name] = table | {option: value}
    elif isinstance(value, Mapping):
        is_same = value.get("name", table.get("name")) == table.get("name")
        made[name] = (table if is_same else {}) | dict(value)
    elif value != table.get("name") or not table:
        made[name] = value


def print_search(found: SearchResult) -> None:
    """Print which axes mattered, the finalists, the verdict, and the winner's settings."""
    for label, problem in found.problems.items():
        echo(Phrase.LEFT_OUT.format(arm=label, problem=problem), err=True)
    title = MEASURES[found.search.objective].title
    _print_effects(found, title)
    workloads = [workload.name for workload in found.search.workloads]
    print_table(
        Phrase.FINALISTS.format(num_seeds=len(found.results.seeds), measure=title),
        ("arm", *(column for name in workloads for column in (name, "against the base"))),
        [_row(found, one.arm.label, workloads) for one in found.finalists],
    )
    echo(f"\n{verdict(found)}\n\nSettings:")
    echo(settings_yaml(found.search.base, found.winner.arm.changes).rstrip())


def _print_effects(found: SearchResult, title: str) -> None:
    """Print which axes mattered, if any did."""
    if len(set(found.rounds[0].scores.values())) == 1 and not found.not_judged:
        echo(Phrase.NO_AXIS_MATTERED.format(measure=title))
        return
    if found.effects:
        print_table(
            Phrase.AXES.format(measure=title),
            ("axis", "share", "mean by value"),
            [
                (one.axis, f"{100 * one.share:.0f}%", _means(found, one.means))
                for one in found.effects
            ],
        )
    if found.not_judged:
        for axis, values in found.not_judged.items():
            echo(Phrase.NOT_JUDGED.format(axis=axis, values=listed(values)))
        echo("")
        return
    rest = max(0.0, 1.0 - sum(one.share for one in found.effects))
    echo(Phrase.REST.format(percent=100 * rest))


def _row(found: SearchResult, label: str, workloads: Sequence[str]) -> list[str]:
    pairs = [(_value(found, label, name), _change(found, label, name)) for name in workloads]
    titles = {one.arm.label: one.arm.title for one in found.finalists}
    return [titles[label], *(cell for pair in pairs for cell in pair)]


def verdict(found: SearchResult) -> str:
    """Return what was found, in a sentence."""
    label, best = found.winner.arm.label, found.finalists[0].arm.label
    if label == best == BASE:
        return Phrase.NONE_BETTER
    if label == BASE:
        return Phrase.NOT_TOLD_APART.format(arm=best, changes=_changes(found, best))
    where = "" if found.is_better else Phrase.IN_THE_MEAN
    return Phrase.BETTER.format(arm=label, where=where, changes=_changes(found, label))


def _changes(found: SearchResult, label: str) -> str:
    names = [workload.name for workload in found.search.workloads]
    return "; ".join(f"{_change(found, label, name)} on {name}" for name in names)


def document(found: SearchResult) -> dict[str, Any]:
    """Return everything as plain data."""
    search, sign = found.search, found.search.sign
    return {
        "objective": search.objective,
        "better": "higher" if sign > 0 else "lower",
        "rounds": [
            {
                "seeds": one.rung.num_seeds,
                "share_of_requests": one.rung.share,
                "values": {label: sign * score for label, score in one.scores.items()},
            }
            for one in found.rounds
        ],
        "axes": [
            {
                "axis": one.axis,
                "share": one.share,
                "means": {value: sign * mean for value, mean in one.means.items()},
            }
            for one in found.effects
        ],
        "axes_not_judged": {axis: list(values) for axis, values in found.not_judged.items()},
        "finalists": [_finalist(found, one.arm.label) for one in found.finalists],
        "seeds": list(found.results.seeds),
        "winner": found.winner.arm.label,
        "is_better": found.is_better,
        "settings": settings_yaml(search.base, found.winner.arm.changes),
        "left_out": dict(found.problems),
    }


def _finalist(found: SearchResult, label: str) -> dict[str, Any]:
    return {
        "arm": label,
        "workloads": {
            workload.name: {
                "value": _mean(found, label, workload.name),
                "against_base": [
                    {"change": each.change, "low": each.low, "high": each.high, "moved": each.moved}
                    for each in found.differences
                    if (each.arm, each.workload) == (label, workload.name)
                ],
            }
            for workload in found.search.workloads
        },
    }


def _mean(found: SearchResult, label: str, workload: str) -> float:
    return fmean(
        run.measures[found.search.objective]
        for run in found.results.runs
        if (run.arm, run.workload) == (label, workload)
    )


def _value(found: SearchResult, label: str, workload: str) -> str:
    return value_text(found.search.objective, _mean(found, label, workload))


def _change(found: SearchResult, label: str, workload: str) -> str:
    """Return the change against the base with its interval; of the base, nothing."""
    for each in found.differences:
        if (each.arm, each.workload) == (label, workload):
            return f"{change_text(each)} {interval_text(each)}"
    return ""


def _means(found: SearchResult, means: Mapping[str, float]) -> str:
    """Return the means of an axis, the best first; of several workloads, in units of the base's."""
    search = found.search
    ordered = sorted(means.items(), key=lambda item: -item[1])
    if len(search.workloads) > 1:
        return ", ".join(f"{value}: {search.sign * mean:.3g} x base" for value, mean in ordered)
    return ", ".join(
        f"{value}: {value_text(search.objective, search.sign * mean)}" for value, mean in ordered
    )
