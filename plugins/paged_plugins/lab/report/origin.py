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
from paged_plugins.lab.statistics.phrases import Phrase
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
        Phrase.LIMIT.format(measure=LATENCIES[kind], limit=limit)
        for kind, limit in results.slo.limits.items()
    ]
    facts = {
        "workloads": ", ".join(results.workloads),
        "seeds": ", ".join(map(str, results.seeds)),
        "service level": ", ".join(limits) or Phrase.NO_LIMITS,
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
        yield Phrase.MISSING_RUNS.format(runs=counted(missing, "run"))
    yield Phrase.SAME_REQUESTS.format(seeds=counted(num_seeds, "seed"))
    yield from choice_sentences(results.chosen, results.arms[0].title)
    settings = results.manifest.get("settings", {}).get(results.arms[0].label, {})
    if settings.get("executor", {}).get("name") == SIMULATED:
        model = settings.get("cost_model") or {}
        options = [f"{key} {show(value)}" for key, value in model.items() if key != "name"]
        yield Phrase.SIMULATED.format(model=model.get("name"), options=", ".join(options))
    if num_seeds < 2:
        yield Phrase.NO_INTERVALS
        return
    yield Phrase.INTERVALS.format(percent=100 * confidence, num_differences=num_differences)
    enough = minimum_seeds(confidence)
    claim = Phrase.NO_CLAIM if num_seeds < enough else Phrase.CLAIM
    yield claim.format(enough=enough, num_seeds=num_seeds)
