"""The conformance kit is itself tested: what is wrong on purpose is caught."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest

from paged_core.component import Component, ComponentSettings
from paged_core.errors import PluginError
from paged_core.registry import Registry
from paged_core.sequence import BlockId, SequenceGroup
from paged_core.testing import (
    BlockAllocatorConformance,
    ComponentConformance,
    EvictorConformance,
    IdleBlock,
    ObserverConformance,
    PreemptionConformance,
    QueueOrderConformance,
    SchedulerConformance,
    VictimConformance,
    registry_with,
)
from unit import faulty_components as faulty


class LruOrder(EvictorConformance):
    """States the order of ``lru``."""

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return held[0].block


class FcfsIsExpected(QueueOrderConformance):
    """States the order of ``fcfs``."""

    def expected(
        self, groups: Sequence[SequenceGroup], now: float, /
    ) -> Sequence[SequenceGroup] | None:
        return groups


class NewestIsExpected(VictimConformance):
    """States the choice of ``newest``."""

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        return candidates[-1]


PLAIN, CACHING, BUDGETED = (
    faulty.FaultySettings,
    faulty.FaultyHashCachedSettings,
    faulty.FaultyTokenBudgetSettings,
)

FAULTS: list[tuple[type[ComponentConformance], type[ComponentSettings], list[type]]] = [
    (
        BlockAllocatorConformance,
        PLAIN,
        [faulty.LeakyAllocator, faulty.DoublingAllocator, faulty.HalfwayAllocator],
    ),
    (
        BlockAllocatorConformance,
        CACHING,
        [
            faulty.StaleAllocator,
            faulty.TrustingAllocator,
            faulty.UnretractingAllocator,
            faulty.NewestDuplicateAllocator,
            faulty.ReferencingAllocator,
        ],
    ),
    (
        EvictorConformance,
        PLAIN,
        [faulty.LeakyEvictor, faulty.KeepingEvictor, faulty.SilentEvictor],
    ),
    (LruOrder, PLAIN, [faulty.WrongTieEvictor]),
    (
        QueueOrderConformance,
        PLAIN,
        [faulty.IncomparableOrder, faulty.DriftingOrder, faulty.CountingOrder],
    ),
    (FcfsIsExpected, PLAIN, [faulty.ReversedOrder]),
    (
        VictimConformance,
        PLAIN,
        [faulty.PoppingVictim, faulty.ActingVictim, faulty.ForgetfulVictim],
    ),
    (NewestIsExpected, PLAIN, [faulty.OldestVictim]),
    (
        PreemptionConformance,
        PLAIN,
        [faulty.SecretSwap, faulty.WordlessPreemption, faulty.StingyPreemption],
    ),
    (
        SchedulerConformance,
        BUDGETED,
        [
            faulty.StarvingScheduler,
            faulty.GreedyScheduler,
            faulty.CrowdingScheduler,
            faulty.ForgettingScheduler,
            faulty.RepeatingScheduler,
            faulty.UnreservedScheduler,
        ],
    ),
    (
        ObserverConformance,
        PLAIN,
        [faulty.RaisingObserver, faulty.MeddlingObserver, faulty.ClosingObserver],
    ),
]

CAUGHT_BY = {
    "StarvingScheduler": "no end in sight",
    "GreedyScheduler": "is the budget of a step",
    "CrowdingScheduler": "sequences run",
    "ForgettingScheduler": "remove\\(\\)",
    "RepeatingScheduler": "twice",
    "UnreservedScheduler": "too few blocks",
    "StaleAllocator": "",
}


def first_failure(
    conformance: type[ComponentConformance],
    made: type,
    settings: type[ComponentSettings],
    folder: Path,
) -> tuple[str, BaseException] | None:
    """Run a conformance class on a component until a test fails; say which, and why."""
    record = Component(
        conformance.slot, settings, f"{made.__module__}:{made.__name__}", summary="wrong"
    )
    registry = registry_with(record)

    class Kit(conformance):  # type: ignore[misc, valid-type]
        component = "faulty"
        max_examples = 40

        def make_registry(self) -> Registry:
            return registry

    tests = [n for n, _ in inspect.getmembers(Kit, inspect.isfunction) if n.startswith("test_")]
    quick_first = sorted(
        tests, key=lambda name: "self.check" in inspect.getsource(getattr(Kit, name))
    )
    for name in quick_first:
        kit = Kit()
        kit.__dict__["_folder"] = folder
        try:
            getattr(kit, name)()
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception) as error:
            return name, error
    return None


@pytest.mark.parametrize(
    ("conformance", "settings", "made"),
    [
        pytest.param(conformance, settings, made, id=made.__name__)
        for conformance, settings, classes in FAULTS
        for made in classes
    ],
)
def test_catches(
    conformance: type[ComponentConformance],
    settings: type[ComponentSettings],
    made: type,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = first_failure(conformance, made, settings, tmp_path)
    assert found is not None, f"nobody noticed: {made.__doc__}"
    name, error = found
    assert "round_trip" not in name
    assert not isinstance(error, (PluginError, ImportError)), error
    if made.__name__ in CAUGHT_BY:
        assert pytest.raises  # the reason is the one that was planted
        import re

        assert re.search(CAUGHT_BY[made.__name__], str(error)), error


def test_every_class_is_tried_with_at_least_three_faults() -> None:
    kinds = (
        BlockAllocatorConformance,
        EvictorConformance,
        QueueOrderConformance,
        SchedulerConformance,
        VictimConformance,
        PreemptionConformance,
        ObserverConformance,
    )
    for kind in kinds:
        tried = [
            made for tried, _, classes in FAULTS if issubclass(tried, kind) for made in classes
        ]
        assert len(set(tried)) >= 3, kind
