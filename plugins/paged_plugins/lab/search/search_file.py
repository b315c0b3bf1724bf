"""What a search looks for, as its file says it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt, model_validator

from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.files import read_file
from paged_plugins.lab.measures.measure import GOODPUT, MEASURES
from paged_plugins.lab.statistics.simultaneous import minimum_seeds
from paged_plugins.lab.study.ablation import SIMULATED, Study
from paged_plugins.lab.study.arms import PlannedArm, plan_arms
from paged_plugins.lab.study.yaml_file import parse

CONFIDENCE = 0.95
"""With which finalists are told apart."""
MAX_ARMS = 10_000
"""Combinations of one search."""
_Few = Annotated[StrictInt, Field(ge=1, le=1000)]


class Search(Study):
    """The content of a search's file."""

    maximize: str | None = None
    """The measure that is to be large; or ``minimize``, one that is to be small."""
    minimize: str | None = None
    seeds: _Few = 5
    """Of the last round; earlier ones have fewer, or fewer requests."""
    finalists: _Few = 3
    """Arms that are confirmed with fresh seeds."""
    confirm: Annotated[StrictInt, Field(ge=minimum_seeds(CONFIDENCE), le=1000)] = 10
    """Fresh seeds; fewer than the least could confirm nothing."""
    reduction: Annotated[StrictInt, Field(ge=2, le=100)] = 3
    """Of every so many arms, one goes on to the next round."""

    @model_validator(mode="after")
    def _possible(self) -> Search:
        if (self.maximize is None) == (self.minimize is None):
            raise ValueError("give `maximize` or `minimize`, with the name of a measure")
        if self.objective not in MEASURES:
            known = did_you_mean(self.objective, MEASURES)
            raise ValueError(f"no measure is called {self.objective!r:.80}{known}")
        if self.objective == GOODPUT and not self.slo.has_limits:
            raise ValueError(f"{GOODPUT} needs limits; give `slo`, such as `slo: {{ttft_ms: 500}}`")
        if self.executor != SIMULATED:
            raise ValueError("executor: a search is made in simulation; leave it out")
        num_arms = prod(map(len, self.axes.values()))
        if num_arms > MAX_ARMS:
            raise ValueError(
                f"axes: {num_arms:,} combinations, and {MAX_ARMS:,} is the most; leave some out"
            )
        return self

    @property
    def objective(self) -> str:
        """The measure."""
        return self.maximize or self.minimize or ""

    @property
    def sign(self) -> float:
        """1 if the measure is to be large, -1 if small."""
        return 1.0 if self.minimize is None else -1.0

    def arms(self, registry: Registry) -> list[PlannedArm]:
        """Return the base and all combinations; SettingsError if one is invalid."""
        return plan_arms(self.layers(), self.axes, registry, product=True)

    def levels(self, arms: Sequence[PlannedArm]) -> dict[str, dict[str, object]]:
        """Return the value that each arm has on each axis, for the arms that are combinations.

        Args:
            arms: the base first.
        """
        found = {}
        for one in arms:
            values = dict(arms[0].arm.held) | dict(one.arm.changes)
            if set(values) == set(self.axes):
                found[one.arm.label] = values
        return found


def read_search(path: Path) -> Search:
    """Read the file of a search; SettingsError if it is wrong, with the key and the cause."""
    return parse(read_file(path), Search, path)


def arms_of(search: Search, path: Path, registry: Registry) -> list[PlannedArm]:
    """Return the arms of a search; SettingsError, which names the file, if one is invalid."""
    try:
        return search.arms(registry)
    except SettingsError as error:
        raise SettingsError(f"{path}: {'; '.join(str(error).splitlines())}") from None
