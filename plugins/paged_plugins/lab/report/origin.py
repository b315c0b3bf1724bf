"""Where results come from, and how far to trust them, as a report tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from paged_core.cli.output import show
from paged_plugins.counted import counted
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.differences import minimum_seeds

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
    told = [f"{name} at most {limit:g} ms" for name, limit in limits if limit is not None]
    return ", ".join(told) if told else "none, so there is no goodput"


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
        yield (
            f"{counted(missing, 'run')} failed or were left out: a difference is of the seeds that"
            " both arms have."
        )
    yield (
        f"Every arm served the same requests with the same {counted(num_seeds, 'seed')}. A"
        " difference is taken within each seed, then averaged."
    )
    if told := _simulation(results):
        yield told
    if num_seeds < 2:
        yield "One seed bounds nothing: there are no intervals, and no claim is made."
    else:
        yield _interval(confidence, num_differences)
        yield _claim(num_seeds, minimum_seeds(confidence))


def _interval(confidence: float, num_differences: int) -> str:
    percent = f"{100 * confidence:g}%"
    return (
        f"[low, high] is the {percent} confidence interval of a difference, by a bootstrap over"
        f" seeds. It is corrected for the number of comparisons: with {percent} confidence all"
        f" {num_differences:,} intervals of this report hold at once."
    )


def _claim(num_seeds: int, enough: int) -> str:
    if num_seeds < enough:
        return f"A claim needs {enough} seeds: with {num_seeds}, nothing is said to have moved."
    return (
        "A measure has moved if its interval leaves out 0; then it is called better or worse, and"
        " set in bold. One that has not moved need not be equal: the interval says how large a"
        " difference may have been missed."
    )


def _simulation(results: Results) -> str:
    """Return where simulated times come from; empty: they are real, or nothing is known of it."""
    settings = results.manifest.get("settings", {}).get(results.arms[0].label, {})
    if settings.get("executor", {}).get("name") != "simulated":
        return ""
    model = settings.get("cost_model") or {}
    options = ", ".join(f"{key} {show(value)}" for key, value in model.items() if key != "name")
    return (
        f"Times are those of a simulation: a step takes what cost model {model.get('name')}"
        f" ({options}) predicts. Intervals are of the draw of requests, not of the prediction."
    )
