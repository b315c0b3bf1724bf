"""Cases of components whose decisions can be repeated, and change no output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Self

import pytest

from paged_core.engine.engine import Engine
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_testing.chance import decisions, decisions_elsewhere
from paged_testing.component import ComponentConformance
from paged_testing.engines import BOTH_PREEMPTIONS, build_memory_engine, serve, serves_again
from paged_testing.served import check_not_cut_short, check_served
from paged_testing.use import chance_watched
from paged_testing.workloads import FOR_EVERY_POLICY, Situation


class Repeats(ComponentConformance):
    """The promise of every policy: runs can be repeated, on any machine and at any time."""

    bytes_free: ClassVar[int] = 4 << 10

    @classmethod
    def of(cls, registry: Registry, slot: str, settings: Mapping[str, Any]) -> Self:
        """Return the cases of the component that settings name for a slot."""
        named = {"slot": slot, "component": settings[slot], "settings": settings}
        made: Self = type(cls.__name__, (cls,), {**named, "_registry": registry})()
        return made

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Return decisions, by what they are about, to compare between processes.

        Args:
            beside: settings of another component of the slot that is at work meanwhile, if any.
        """
        settings = {**self.settings, self.slot: self._table}
        return decisions(self.registry, self.slot, settings, beside=beside)

    def uses(self) -> Callable[[int], object]:
        values = {**self.settings, "num_blocks": 7, "max_model_len": 24, self.slot: self._table}
        try:
            engine = build_memory_engine(self.registry, **{**BOTH_PREEMPTIONS, **values})
        except SettingsError:
            engine = build_memory_engine(self.registry, **values)
        lasting = build_memory_engine(self.registry, **{**values, "num_blocks": 24})
        return serves_again(engine, lasting=lasting)

    def test_asks_no_clock_and_rolls_no_dice(self) -> None:
        """And waits for nothing."""
        with chance_watched(self.package):
            self.answers()

    def test_decides_the_same_in_another_process(self) -> None:
        """Whose strings have other hashes, on which the order of sets depends; here another
        component is at work, with which it shares nothing."""
        self.check_decides_as_alone(*[{**self.settings, self.slot: self._table}] * 2)

    def test_goes_by_its_own_options_beside_another(self) -> None:
        """Also by those of what it asks for of a package's own slot."""
        usual, others = {**self.settings, self.slot: self._table}, self.other_settings()
        of_each = ([each for each in others if name in each] for name in ("component", "settings"))
        for each in chain(*(some[:2] for some in of_each)):
            table = each.get("component", self._table)
            other = {**usual, **each.get("settings", {}), self.slot: table}
            with suppress(SettingsError):
                self.check_decides_as_alone(other, usual)

    def check_decides_as_alone(
        self, settings: Mapping[str, Any], others: Mapping[str, Any]
    ) -> None:
        """Check decisions beside an engine of other settings against those of a fresh process."""
        kit = next(kind for kind in type(self).__mro__ if kind.__module__.startswith(_KITS))
        here = _decided(kit, self.registry, self.slot, settings, beside=others)
        there = decisions_elsewhere(partial(_decided, kit), self.registry, self.slot, settings)
        for name, steps in here.items():
            for step, (one, other) in enumerate(zip(steps, there[name], strict=False)):
                assert one == other, (
                    f"{name}: in step {step} another process decides {other}, this one "
                    f"{one}: what it decides may depend on no hash of a string, no "
                    "order of a set and nothing that others keep in its class or module "
                    f"({settings[self.slot]}, beside {others[self.slot]})"
                )


def _decided(
    kit: type[Repeats],
    registry: Registry,
    slot: str,
    settings: Mapping[str, Any],
    *,
    beside: Mapping[str, Any] | None = None,
) -> dict[str, list[Any]]:
    return kit.of(registry, slot, settings).answers(beside)


_KITS = ("paged_testing.", "paged_plugins.")
"""Packages of conformance classes, which another process imports."""


class ServesEveryWorkload(Repeats):
    """The promise of every policy: it changes the schedule, and never the output.

    Small engines with this component, and any others, serve workloads on the ``memory`` executor:
    every request finishes with the output that it has alone, and no block leaks.
    """

    def make_engine(self, **values: Any) -> Engine:
        """A small engine without a model that has the component."""
        return build_memory_engine(
            self.registry, **{**self.settings, **values, self.slot: self._table}
        )

    def situation_engine(self, situation: Situation, **values: Any) -> Engine:
        """A small engine for a situation of which the components combine, or skip."""
        try:
            return self.make_engine(**situation.values({self.slot: self._table, **values}))
        except SettingsError as error:
            pytest.skip(str(error))

    def check_written(self) -> None:
        for situation in FOR_EVERY_POLICY.values():
            with suppress(pytest.skip.Exception):
                self.test_serves_when(situation)

    @pytest.mark.parametrize("situation", FOR_EVERY_POLICY.values(), ids=FOR_EVERY_POLICY)
    def test_serves_when(self, situation: Situation) -> None:
        engine = self.situation_engine(situation)
        groups = serve(engine, situation.workload)
        check_served(engine, situation.workload, groups)
        if not situation.outgrown:
            check_not_cut_short(groups.values())
