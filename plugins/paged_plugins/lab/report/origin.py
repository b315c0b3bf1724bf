"""What was run, as a report tells it: enough to run it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from paged_core.cli.output import show
from paged_plugins.lab.results import Results

_TIMES = frozenset({"started", "finished", "ended", "created", "seconds", "times", "elapsed"})
"""Of the run itself: reports of equal results are equal."""
_LONGEST = 200
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
    for key, value in _plain(results.manifest).items():
        if key in _TIMES | {"seeds", "slo"}:
            continue
        if isinstance(value, Mapping | list):
            if value:
                blocks[key] = yaml.safe_dump(
                    value, sort_keys=False, allow_unicode=True, width=88
                ).rstrip()
        elif value is not None:
            facts[key] = show(value)
    return Origin(
        arms=[(arm.label, _changes(arm.changes)) for arm in results.arms],
        facts=[(key, value) for key, value in facts.items() if len(value) <= _LONGEST],
        blocks=[*((key, value) for key, value in facts.items() if len(value) > _LONGEST)]
        + [*blocks.items()],
    )


def service_level(results: Results) -> str:
    """Return the latencies that a request must meet, in words."""
    slo = results.slo
    limits = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("completion", slo.e2e_ms))
    told = [f"{name} at most {limit:g} ms" for name, limit in limits if limit is not None]
    return ", ".join(told) if told else "none: goodput counts every request that was served"


def _plain(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as JSON has it."""
    plain: dict[str, Any] = json.loads(json.dumps(manifest, default=str))
    return plain


def _changes(changes: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}: {show(value)}" for key, value in changes.items())
