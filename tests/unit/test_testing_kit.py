"""The conformance kit finds components that are wrong on purpose."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import Phase
from pydantic import field_validator

from conformance import test_evictors
from paged_core import testing
from paged_core.component import Component, ComponentSettings
from paged_core.errors import PluginError
from paged_core.ids import BlockId
from paged_core.registry import Registry
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.settings import settings_class
from paged_core.testing import (
    POLICY_SLOTS,
    AttentionConformance,
    BlockAllocatorConformance,
    ComponentConformance,
    EvictorConformance,
    ExecutorConformance,
    FailingExecutor,
    IdleBlock,
    ObserverConformance,
    PreemptionConformance,
    QueueOrderConformance,
    RunnerConformance,
    SchedulerConformance,
    VictimConformance,
    Workload,
    build_memory_engine,
    check_nothing_leaked,
    check_served,
    registry_with,
    serve,
    settings_round_trip,
    simple_request,
    text_alone,
)
from unit import faulty_attention as attention
from unit import faulty_components as faulty
from unit import faulty_evictors as evictors
from unit import faulty_executors as executors
from unit import faulty_quanta as quanta
from unit import faulty_runners as runners
from unit import faulty_schedulers as schedulers


class LruOrder(EvictorConformance):
    """States the order of ``lru``."""

    def expected(self, held: Sequence[IdleBlock], /) -> BlockId | None:
        return held[0].block


class ScanIsExpected(EvictorConformance):
    """States the order of ``lru`` with ``ties: longest_prefix``."""

    expected = test_evictors.TestLruWithTies.expected


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
    schedulers.FaultyTokenBudgetSettings,
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
        [
            evictors.LeakyEvictor,
            evictors.KeepingEvictor,
            evictors.SilentEvictor,
            evictors.SortingEvictor,
            evictors.SearchingEvictor,
            evictors.RollingEvictor,
            evictors.OneBlockPerKeyEvictor,
            evictors.ConfusingEvictor,
            evictors.KeyOrderEvictor,
            evictors.HoardingEvictor,
        ],
    ),
    (LruOrder, PLAIN, [evictors.WrongTieEvictor]),
    (ScanIsExpected, PLAIN, [evictors.RunScanEvictor]),
    (
        QueueOrderConformance,
        PLAIN,
        [
            faulty.IncomparableOrder,
            faulty.DriftingOrder,
            faulty.CountingOrder,
            faulty.MarkingOrder,
            faulty.RollingOrder,
            quanta.MarkingQuantum,
            quanta.CountingQuantum,
            quanta.RollingQuantum,
            quanta.WordlessQuantum,
            quanta.NarrowQuantum,
        ],
    ),
    (FcfsIsExpected, PLAIN, [faulty.ReversedOrder]),
    (
        VictimConformance,
        PLAIN,
        [
            faulty.PoppingVictim,
            faulty.ActingVictim,
            faulty.ForgetfulVictim,
            faulty.LateVictim,
            faulty.CountingVictim,
            faulty.RollingVictim,
        ],
    ),
    (NewestIsExpected, PLAIN, [faulty.OldestVictim]),
    (
        PreemptionConformance,
        PLAIN,
        [
            faulty.SecretSwap,
            faulty.WordlessPreemption,
            faulty.StingyPreemption,
            faulty.ExcessivePreemption,
            faulty.HoardingPreemption,
            faulty.TouchingPreemption,
            faulty.AlternatingPreemption,
        ],
    ),
    (
        SchedulerConformance,
        BUDGETED,
        [
            schedulers.StarvingScheduler,
            schedulers.GreedyScheduler,
            schedulers.TooManySequencesScheduler,
            schedulers.ForgettingScheduler,
            schedulers.RepeatingScheduler,
            schedulers.UnreservedScheduler,
            schedulers.SilentScheduler,
            schedulers.ModestScheduler,
            schedulers.DiscreetScheduler,
            schedulers.UnderstatingScheduler,
            schedulers.PickyScheduler,
            schedulers.IgnoringScheduler,
            schedulers.DicingScheduler,
            schedulers.ImpatientScheduler,
            quanta.HastyScheduler,
            quanta.ObligingScheduler,
            quanta.RestlessScheduler,
        ],
    ),
    (
        ObserverConformance,
        PLAIN,
        [faulty.RaisingObserver, faulty.MeddlingObserver, faulty.ClosingObserver],
    ),
    (
        ExecutorConformance,
        executors.FaultyMemorySettings,
        [
            executors.BoastingExecutor,
            executors.UncopyingExecutor,
            executors.LosingExecutor,
            executors.HastyExecutor,
            executors.EagerExecutor,
            executors.ShufflingExecutor,
            executors.SingleExecutor,
            executors.SociableExecutor,
            executors.RememberingExecutor,
        ],
    ),
    (
        AttentionConformance,
        PLAIN,
        [
            attention.BoundlessAttention,
            attention.UncappedAttention,
            attention.ForgetfulAttention,
            attention.LateAttention,
            attention.UnreadAttention,
        ],
    ),
    (
        RunnerConformance,
        runners.FaultyNativeSettings,
        [
            runners.PlacelessRunner,
            runners.LeakyRunner,
            runners.UpsideDownRunner,
            runners.CoarseRunner,
            runners.LastRowRunner,
        ],
    ),
]

CAUGHT_BY = {
    "SortingEvictor": "comparisons among 64 .* no faster than the logarithm",
    "SearchingEvictor": "no faster than the logarithm",
    "RollingEvictor": "runs cannot be repeated|the same calls",
    "ConfusingEvictor": "content keys may only be compared",
    "KeyOrderEvictor": "content keys may only be compared",
    "HoardingEvictor": "left [0-9]+ bytes allocated",
    "RunScanEvictor": "must be evicted first",
    "LateVictim": "chose another group",
    "CountingVictim": "it changed group 'r0'.num_preemptions from 0 to 1",
    "RollingVictim": "runs cannot be repeated",
    "MarkingOrder": "num_cached from None to 0",
    "RollingOrder": "runs cannot be repeated",
    "MarkingQuantum": "num_preemptions from 0 to",
    "CountingQuantum": "a second call returns something else",
    "RollingQuantum": "runs cannot be repeated",
    "WordlessQuantum": "not bools",
    "ExcessivePreemption": "tokens are reserved",
    "HoardingPreemption": "fits alone, but is refused",
    "TouchingPreemption": "num_preemptions from 0 to 1",
    "AlternatingPreemption": "same mode",
    "StarvingScheduler": "unfinished after",
    "GreedyScheduler": "is the budget of a step",
    "TooManySequencesScheduler": "sequences run",
    "ForgettingScheduler": "remove\\(\\)",
    "RepeatingScheduler": "twice",
    "UnreservedScheduler": "too few blocks",
    "SilentScheduler": "not among the admitted",
    "ModestScheduler": "were taken from the cache",
    "DiscreetScheduler": "not among the preempted",
    "UnderstatingScheduler": "2 sequences run, 1 may",
    "ImpatientScheduler": "for 1 tokens, 0 are left",
    "PickyScheduler": "fits alone, but is refused",
    "IgnoringScheduler": "fits alone, but is ignored",
    "DicingScheduler": "the first time|shorter than|longer than",
    "HastyScheduler": "unfinished after",
    "ObligingScheduler": "preempted for what came later",
    "RestlessScheduler": "there was no other request",
}


def first_failure(
    conformance: type[ComponentConformance],
    made: type,
    settings: type[ComponentSettings],
    folder: Path,
) -> tuple[str, BaseException] | None:
    """Run a conformance class on a component until a test fails; return its name and the error.

    Failures are not shrunk: that would take minutes.
    """
    record = Component(
        conformance.slot, settings, f"{made.__module__}:{made.__name__}", summary="wrong"
    )
    registry = registry_with(record)

    class Kit(conformance):  # type: ignore[misc, valid-type]
        component = "faulty"
        max_examples = 40

        def make_registry(self) -> Registry:
            return registry

        def profile(self, share: float = 1, **more: Any) -> Any:
            quick = {"phases": [Phase.generate], "report_multiple_bugs": False}
            return super().profile(share, derandomize=True, **quick, **more)

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
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever it is
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
    assert found is not None, f"no test noticed: {made.__doc__}"
    name, error = found
    assert "round_trip" not in name
    assert not isinstance(error, (PluginError, ImportError, AttributeError)), error
    assert re.search(CAUGHT_BY.get(made.__name__, ""), str(error)), error


def test_every_class_is_tried_with_at_least_three_faults() -> None:
    kinds = [
        kind
        for name, kind in vars(testing).items()
        if name.endswith("Conformance") and hasattr(kind, "slot")
    ]
    assert {kind.slot for kind in kinds} >= set(POLICY_SLOTS)
    for kind in kinds:
        tried = [
            made for tried, _, classes in FAULTS if issubclass(tried, kind) for made in classes
        ]
        assert len(set(tried)) >= 3, kind


class TestHelpers:
    def test_registry_with_adds_parts_to_what_is_installed(self) -> None:
        part = Component("evictor", PLAIN, "unit.faulty_evictors:LeakyEvictor", summary="wrong")
        registry = registry_with(part)
        assert {"lru", "faulty"} <= set(registry.of("evictor"))
        assert "faulty" not in registry_with().of("evictor")
        engine = build_memory_engine(registry, evictor="faulty")
        assert engine.kv_cache.num_free == 64

    def test_registry_with_refuses_what_cannot_be_used(self) -> None:
        with pytest.raises(PluginError, match="victor"):
            registry_with(Component("victor", PLAIN, "a:b"))

    def test_settings_round_trip_accepts_what_is_sound(self) -> None:
        registry = registry_with()
        for slot in registry.slots:
            for component in registry.of(slot).values():
                settings_round_trip(component)
        settings_round_trip(settings_class(registry)(num_blocks=4, scheduler="prefill_or_decode"))

    def test_settings_round_trip_refuses_what_loses_something(self) -> None:
        class LossySettings(ComponentSettings):
            name: Literal["lossy"] = "lossy"
            size: int = 3

        with pytest.raises(AssertionError, match="no description"):
            settings_round_trip(LossySettings)
        with pytest.raises(AssertionError, match="JSON loses"):
            settings_round_trip(DoublingSettings(size=2))

    def test_check_served_notices_wrong_text_and_leaks(self) -> None:
        workload = Workload(((0, simple_request("A", 5, 4)),))
        engine = build_memory_engine()
        groups = serve(engine, workload)
        check_served(engine, workload, groups)
        groups["A"].sequences[0].tokens[-1] += 1
        with pytest.raises(AssertionError, match="alone it has"):
            check_served(engine, workload, groups)
        engine.kv_cache._allocator.allocate(2)
        with pytest.raises(AssertionError, match="2 device blocks leaked"):
            check_nothing_leaked(engine)

    def test_text_alone_is_what_an_engine_says(self) -> None:
        request = simple_request("A", 5, 4, n=2)
        engine = build_memory_engine()
        FailingExecutor.install(engine)
        (group,) = serve(engine, Workload(((0, request),))).values()
        assert request.sampling == SamplingParams(max_tokens=4, n=2)
        for sequence in group.sequences:
            assert sequence.output == text_alone(engine, request, sequence.index)

    def test_serve_notices_what_does_not_end(self) -> None:
        engine = build_memory_engine()
        with pytest.raises(AssertionError, match="unfinished after 3 steps"):
            serve(engine, Workload(((0, simple_request("A", 5, 40)),)), max_steps=3)


class DoublingSettings(ComponentSettings):
    """Reads something else than it writes."""

    name: Literal["doubling"] = "doubling"
    size: int = 3

    @field_validator("size")
    @classmethod
    def _double(cls, size: int) -> int:
        return 2 * size
