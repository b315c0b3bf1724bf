"""The origin of results, and how far to trust them, as a report tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import yaml

from paged_core.cli.output import show
from paged_plugins.lab.load.fractions import choice_sentences
from paged_plugins.lab.measures import LATENCIES
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import minimum_seeds
from paged_plugins.lab.study.arms import Arm
from paged_plugins.lab.tasks.task import SIMULATED
from paged_plugins.progress import counted

_LEFT_OUT = frozenset({"format", "arms", "runs", "seeds", "slo", "chosen", "started", "finished"})
"""Keys of a manifest that are told elsewhere, or differ between runs with equal results."""
_LONGEST = 300
"""Characters of a fact that is shown in a line; longer ones are shown as blocks."""


Told = Sequence[tuple[str, str]]


def origin(results: Results) -> tuple[Told, Told]:
    """Return where ``results`` come from, as far as they tell: what fits into a line each, and the
    rest, as YAML.
    """
    limits = [
        f"{LATENCIES[kind]} at most {limit:g} ms" for kind, limit in results.slo.limits.items()
    ]
    facts = {
        "workloads": ", ".join(results.workloads),
        "seeds": ", ".join(map(str, results.seeds)),
        "service level": ", ".join(limits) or "none, so there is no goodput",
    }
    blocks = {}
    first = results.arms[0].label
    manifest = json.loads(json.dumps(results.manifest, default=str))
    for key, value in sorted(manifest.items(), key=lambda item: item[0] == "settings"):
        if key in _LEFT_OUT:
            continue
        if key == "settings" and isinstance(value, Mapping):
            key, value = f"settings of {first}", value.get(first)
        if _is_flat(value):
            facts[key] = ", ".join(f"{name} {show(inner)}" for name, inner in value.items())
        elif isinstance(value, Mapping | list):
            if value:
                blocks[key] = yaml.safe_dump(
                    value, sort_keys=False, allow_unicode=True, width=88, default_flow_style=None
                ).rstrip()
        elif value is not None:
            facts[key] = show(value)
    long = {key: fact for key, fact in facts.items() if len(fact) > _LONGEST}
    return [item for item in facts.items() if item[0] not in long], [*(long | blocks).items()]


def _is_flat(value: object) -> bool:
    return isinstance(value, Mapping) and not any(
        isinstance(inner, Mapping | list) for inner in value.values()
    )


def changes(arm: Arm) -> str:
    """Return the settings that an arm changes, one a line."""
    return "\n".join(f"{key}: {show(value)}" for key, value in arm.changes.items())


def notes(results: Results, confidence: float, num_differences: int) -> Iterator[str]:
    """Yield what a reader must know of the runs, the intervals and the claims."""
    num_seeds = len(results.seeds)
    sound = [arm.label for arm in results.arms if arm.label not in results.failures]
    num_runs = sum(len(runs) for (arm, _), runs in results.runs_of.items() if arm in sound)
    missing = len(sound) * len(results.workloads) * num_seeds - num_runs
    if missing:
        yield (
            f"{counted(missing, 'run')} failed or were left out: a difference is of the seeds that "
            "both arms have."
        )
    yield (
        f"Every arm served the same requests with the same {counted(num_seeds, 'seed')}. A "
        "difference is taken within each seed, then averaged."
    )
    yield from choice_sentences(results.chosen, results.arms[0].title)
    settings = results.manifest.get("settings", {}).get(results.arms[0].label, {})
    if settings.get("executor", {}).get("name") == SIMULATED:
        model = settings.get("cost_model") or {}
        options = [f"{key} {show(value)}" for key, value in model.items() if key != "name"]
        yield (
            "Times are those of a simulation: a step takes what cost model "
            f"{model.get('name')} ({', '.join(options)}) predicts. Intervals are of the draw of "
            "requests, not of the prediction."
        )
    if num_seeds < 2:
        yield "One seed bounds nothing: there are no intervals, and all is undecided."
        return
    yield (
        f"[low, high] is the {100 * confidence:g}% confidence interval of a difference, by a "
        "bootstrap over seeds. It is corrected for the number of comparisons: with "
        f"{100 * confidence:g}% confidence all {num_differences:,} intervals of this report hold "
        "at once."
    )
    enough = minimum_seeds(confidence)
    if num_seeds < enough:
        yield f"A decision needs {enough} seeds: with {num_seeds}, all is undecided."
        return
    yield (
        "A difference is decided if its interval leaves out 0; then it is called better or worse, "
        "and set in bold. One that is undecided need not be none: the interval says how large a "
        "difference may have been missed."
    )
