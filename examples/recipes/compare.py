"""Replays the scenario of each recipe with the recipe and without.

python examples/recipes/compare.py              all recipes
python examples/recipes/compare.py NAME...      some, by the name of their file
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "third_party" / "paged-core-example" / "src")]

from paged_core_example import plugin as example  # noqa: E402
from parts import CHEAPEST  # noqa: E402

from paged_core.plugins.registry import Registry  # noqa: E402
from paged_plugins.decisions.replay import replay  # noqa: E402
from paged_plugins.decisions.scenario import Scenario, read_case  # noqa: E402

Trace = list[dict[str, Any]]
Measure = Callable[[Trace, Scenario], int]


def tokens_computed(trace: Trace, scenario: Scenario) -> int:
    """Total of computed tokens."""
    return sum(sum(line["scheduled"].values()) for line in trace)


def deadlines_missed(trace: Trace, scenario: Scenario) -> int:
    """Requests that finished after their deadline, or else twenty seconds after their arrival."""
    ends = {name: line["step"] for line in trace for name in line["finished"]}
    return sum(
        ends[request.id] * scenario.seconds_per_step
        > (request.step + 20 if request.deadline is None else request.deadline)
        for request in scenario.requests
    )


def last_step_of(*names: str) -> Measure:
    """The step in which the last of these requests finished."""

    def last_step(trace: Trace, scenario: Scenario) -> int:
        return max(line["step"] for line in trace for name in line["finished"] if name in names)

    last_step.__doc__ = f"The step in which {' and '.join(names)} finished."
    return last_step


@dataclass(frozen=True)
class Recipe:
    """The settings that a recipe replaces, and a metric that is lower with the recipe."""

    instead_of: Mapping[str, Any]
    metric: Measure


RECIPES = {
    "victim_by_recompute_cost": Recipe({"victim": "newest"}, tokens_computed),
    "preempt_for_urgent": Recipe(
        {"scheduler": {"name": "token_budget", "max_num_seqs": 2}}, last_step_of("urgent")
    ),
    "cost_aware_eviction": Recipe({"evictor": "lru"}, tokens_computed),
    "short_first_with_aging": Recipe({"queue_order": "sjf"}, last_step_of("long")),
    "fair_among_tenants": Recipe({"queue_order": "fcfs"}, last_step_of("modest1", "modest2")),
    "earliest_deadline_first": Recipe({"queue_order": "fcfs"}, deadlines_missed),
    "longest_prefix_first": Recipe({"queue_order": "fcfs"}, tokens_computed),
}
"""By the name of the scenario file."""


def registry() -> Registry:
    """The installed components, the victim of ``parts.py``, the evictor of the example package."""
    found = Registry.discover()
    missing = [part for part in (CHEAPEST,) if part.name not in found.of(part.slot)]
    missing += [
        part
        for part in example.paged_core_components()
        if part.slot == "evictor" and part.name not in found.of("evictor")
    ]
    return found.extended(*missing, plugin="recipes")


def measure(name: str) -> tuple[int, int]:
    """The metric of a recipe, without it and with it."""
    recipe, scenario, parts = RECIPES[name], read_case(FOLDER / f"{name}.yaml").scenario, registry()
    usual = scenario.model_copy(update={"settings": {**scenario.settings, **recipe.instead_of}})
    without, with_it = (
        recipe.metric(list(replay(each, parts)), each) for each in (usual, scenario)
    )
    return without, with_it


def main(names: Iterable[str]) -> None:
    """Print what each recipe changes."""
    for name in names:
        scenario = read_case(FOLDER / f"{name}.yaml").scenario
        without, with_it = measure(name)
        changed = ", ".join(
            f"{slot}: {scenario.settings[slot]} instead of {usual}"
            for slot, usual in RECIPES[name].instead_of.items()
        )
        print(f"{name}\n  {scenario.about}\n  {changed}")
        print(f"  {RECIPES[name].metric.__doc__} {without} -> {with_it}")


if __name__ == "__main__":
    main(sys.argv[1:] or RECIPES)
