"""Successive halving over the arms of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paged_core.errors import EngineError
from paged_plugins.lab.search.rungs import Rung
from paged_plugins.lab.search.search_file import Search
from paged_plugins.lab.search.trials import Trials, scores
from paged_plugins.lab.study.arm import BASE
from paged_plugins.lab.study.arms import PlannedArm


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found."""

    rung: Rung
    scores: Mapping[str, float]
    """By label; higher is better. Without the arms that failed."""


def halve(
    arms: Sequence[PlannedArm], rungs: Sequence[Rung], search: Search, trials: Trials
) -> tuple[list[Round], list[PlannedArm]]:
    """Return the rounds, and the finalists, the best first.

    The base, which comes first, is run in every round: several workloads are averaged in its units.

    Raises:
        EngineError: the base failed, or all others.
    """
    base, rounds, kept = arms[0], [], list(arms)
    for number, rung in enumerate(rungs):
        taking_part = [base, *(one for one in kept if one is not base)]
        found = scores(trials.run(taking_part, range(rung.num_seeds), rung.share), search, BASE)
        if BASE not in found:
            raise EngineError(f"the base failed: {trials.problems[BASE]}")
        rounds.append(Round(rung, found))
        last = number + 1 == len(rungs)
        size = search.finalists if last else rungs[number + 1].num_arms
        kept = best_first([one for one in kept if one.arm.label in found], found)[:size]
    return rounds, kept


def best_first(arms: Sequence[PlannedArm], found: Mapping[str, float]) -> list[PlannedArm]:
    """Return arms by their score; among equals, one that changes less comes first."""
    return sorted(arms, key=lambda one: (-found[one.arm.label], len(one.arm.changes)))
