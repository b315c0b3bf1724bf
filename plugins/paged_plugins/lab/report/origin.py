"""The origin of results, and how far to trust them, as a report tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from paged_core.cli.output import show
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import minimum_seeds
from paged_plugins.lab.statistics.phrases import Phrase
from paged_plugins.lab.tasks.task import SIMULATED
from paged_plugins.progress import counted

_LEFT_OUT = frozenset({"format", "arms", "runs", "seeds", "slo", "started", "finished"})
"""Keys of a manifest that are told elsewhere, or differ between runs with equal results."""
_LONGEST = 300
"""Characters of a fact that is shown in a line; longer ones are shown as blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where results come from."""

    arms: Sequence[tuple[str, str]]
    """The label of each arm, and the settings that it changes."""
    facts: Sequence[tuple[str, str]]
    """What fits into a line each."""
    blocks: Sequence[tuple[str, str]]
    """The rest, as YAML."""


def origin(results: Results) -> Origin:
    """Return where ``results`` come from, as far as they tell."""
    facts = {
        "workloads": ", ".join(results.workloads),
        "seeds": ", ".join(map(str, results.seeds)),
        "service level": service_level(results),
    }
    blocks = {}
    first = results.arms[0].label
    manifest = _plain(results.manifest)
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
    return Origin(
        arms=[(arm.label, _changes(arm.changes)) for arm in results.arms],
        facts=[item for item in facts.items() if len(item[1]) <= _LONGEST],
        blocks=[item for item in facts.items() if len(item[1]) > _LONGEST] + list(blocks.items()),
    )


def _is_flat(value: object) -> bool:
    return isinstance(value, Mapping) and not any(
        isinstance(inner, Mapping | list) for inner in value.values()
    )


def service_level(results: Results) -> str:
    """Return the latencies that a request must meet, in words."""
    slo = results.slo
    limits = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("completion", slo.e2e_ms))
    told = [
        Phrase.LIMIT.format(measure=name, limit=limit)
        for name, limit in limits
        if limit is not None
    ]
    return ", ".join(told) or Phrase.NO_LIMITS


def _plain(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as JSON has it."""
    plain: dict[str, Any] = json.loads(json.dumps(manifest, default=str))
    return plain


def _changes(changes: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}: {show(value)}" for key, value in changes.items())


def notes(results: Results, confidence: float, num_differences: int) -> Iterator[str]:
    """Yield what a reader must know of the runs, the intervals and the claims."""
    num_seeds = len(results.seeds)
    missing = len(results.arms) * len(results.workloads) * num_seeds - len(results.runs)
    if missing:
        yield Phrase.MISSING_RUNS.format(runs=counted(missing, "run"))
    yield Phrase.SAME_REQUESTS.format(seeds=counted(num_seeds, "seed"))
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
