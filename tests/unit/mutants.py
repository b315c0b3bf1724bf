"""Runs the conformance classes on components that are wrong on purpose, until a test fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import Phase

from conformance import test_evictors
from paged_core.ids import BlockId
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_testing import (
    AttentionConformance,
    BlockAllocatorConformance,
    ComponentConformance,
    EvictorConformance,
    ExecutorConformance,
    IdleBlock,
    ObserverConformance,
    PreemptionConformance,
    QueueOrderConformance,
    RunnerConformance,
    SchedulerConformance,
    VictimConformance,
    registry_with,
)
from paged_testing.call_watch import CallDoesNotReturn
from unit import faulty_allocators as allocators
from unit import faulty_attention as attention
from unit import faulty_evictors as evictors
from unit import faulty_executors as executors
from unit import faulty_observers as observers
from unit import faulty_policies as policies
from unit import faulty_quanta as quanta
from unit import faulty_runners as runners
from unit import faulty_schedulers as schedulers
from unit import faulty_settings as settings


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


@dataclass(frozen=True)
class Mutant:
    """A component that is wrong on purpose, and the class that has to find it out."""

    conformance: type[ComponentConformance]
    settings: type[ComponentSettings]
    made: type

    @property
    def name(self) -> str:
        return self.made.__name__


@dataclass(frozen=True)
class Caught:
    """The first test that failed."""

    case: str
    is_written: bool
    """Whether it is a written case, and not a property with examples."""
    error: BaseException
    seconds: float


_PLAIN = settings.FaultySettings

_ALL: tuple[tuple[type[ComponentConformance], type[ComponentSettings], str], ...] = (
    (
        BlockAllocatorConformance,
        _PLAIN,
        "Leaky Doubling Halfway Waiting Shuffling Once Shared Countless",
    ),
    (
        BlockAllocatorConformance,
        settings.FaultyHashCachedSettings,
        "Stale Trusting NotUncaching NewestDuplicate Referencing Evicting IdleUncaching "
        "Unremoving Merging Short",
    ),
    (BlockAllocatorConformance, settings.FaultyContiguousSettings, "Scattering Scant"),
    (
        EvictorConformance,
        _PLAIN,
        "Leaky Keeping Silent Sorting Searching Rolling OneBlockPerKey Confusing KeyOrder "
        "Hoarding Hanging StaleHeap Shared Bare Needy",
    ),
    (LruOrder, _PLAIN, "WrongTie"),
    (ScanIsExpected, _PLAIN, "RunScan"),
    (
        QueueOrderConformance,
        _PLAIN,
        "Incomparable Drifting Counting Marking Rolling OneSided Assuming Remembering Shared "
        "Waiting Frozen",
    ),
    (FcfsIsExpected, _PLAIN, "Reversed"),
    (
        VictimConformance,
        _PLAIN,
        "Popping Acting Forgetful Late Counting Rolling Sorting Sparing Waiting Mean",
    ),
    (NewestIsExpected, _PLAIN, "Oldest"),
    (
        PreemptionConformance,
        _PLAIN,
        "SecretSwap Wordless Stingy Excessive Hoarding Touching Alternating Rolling Narrow "
        "Searching First",
    ),
    (
        SchedulerConformance,
        schedulers.FaultyTokenBudgetSettings,
        "Starving Greedy TooManySequences Forgetting Repeating Unreserved Silent Modest Discreet "
        "Understating Picky Ignoring Dicing Impatient Stuck Circling Wishful Halfway "
        "EarlySharing FullyCached Dropping Unswapping Pairing Holding",
    ),
    (
        ObserverConformance,
        _PLAIN,
        "Raising Meddling Closing Waiting Unique Simple Tidy Placed Only Prompt Buffering",
    ),
    (
        ExecutorConformance,
        executors.FaultyMemorySettings,
        "Boasting Uncopying Losing Hasty Eager Shuffling Single Sociable Remembering Waiting "
        "Stepwise SingleFile Unedited OnceClosed Rowless",
    ),
    (
        AttentionConformance,
        _PLAIN,
        "Boundless Uncapped Forgetful Late Unread Unscaled Flat Shifted Turned Thrifty Looping",
    ),
    (
        RunnerConformance,
        runners.FaultyNativeSettings,
        "Placeless Leaky UpsideDown Coarse LastRow Looping Stateful Averaging Noisy Wide",
    ),
)
_MODULES = {
    "block_allocator": allocators,
    "evictor": evictors,
    "queue_order": policies,
    "victim": policies,
    "preemption": policies,
    "scheduler": schedulers,
    "observers": observers,
    "executor": executors,
    "attention": attention,
    "runner": runners,
}
_NOUNS = {"block_allocator": "Allocator", "queue_order": "Order", "observers": "Observer"}


def _mutants() -> Iterator[Mutant]:
    for conformance, options, names in _ALL:
        slot = conformance.slot
        noun = _NOUNS.get(slot, slot.capitalize())
        for name in names.split():
            module = _MODULES[slot]
            made = getattr(module, name, None) or getattr(module, name + noun)
            yield Mutant(conformance, options, made)
    for name in ("Marking", "Counting", "Rolling", "Wordless", "Narrow"):
        yield Mutant(QueueOrderConformance, _PLAIN, getattr(quanta, name + "Quantum"))
    for made in (quanta.HastyScheduler, quanta.ObligingScheduler, quanta.RestlessScheduler):
        yield Mutant(SchedulerConformance, schedulers.FaultyTokenBudgetSettings, made)


MUTANTS: Sequence[Mutant] = tuple(_mutants())


def first_failure(mutant: Mutant, folder: Path) -> Caught | None:
    """Run the conformance class on a mutant, in the order of pytest, until a test fails.

    Failures are not shrunk, and a call that does not return is given a third of the usual time.

    Args:
        folder: for files of observers; the present one.
    """
    conformance, made = mutant.conformance, mutant.made
    factory = f"{made.__module__}:{made.__name__}"
    record = Component(conformance.slot, mutant.settings, factory, summary="wrong")
    registry = registry_with(record)

    class Kit(conformance):  # type: ignore[misc, valid-type]
        component = "faulty"
        max_examples = 40
        max_seconds = conformance.max_seconds / 3

        def make_registry(self) -> Registry:
            return registry

        def profile(self, share: float = 1, **more: Any) -> Any:
            quick = {"phases": [Phase.generate], "report_multiple_bugs": False}
            return super().profile(share, derandomize=True, **quick, **more)

    started = perf_counter()
    for case, is_written, run in _tests(Kit):
        kit = Kit()
        kit.__dict__["_folder"] = folder
        try:
            with kit.watched():
                run(kit)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception, CallDoesNotReturn) as error:  # noqa: BLE001
            return Caught(case, is_written, error, perf_counter() - started)
    return None


def _tests(kit: type[ComponentConformance]) -> Iterator[tuple[str, bool, Callable[[Any], None]]]:
    """The tests of a class in the order of pytest, with their parameters."""
    seen: set[str] = set()
    by_class = []
    for kind in kit.__mro__:
        names = [name for name in vars(kind) if name.startswith("test_") and name not in seen]
        by_class.append(names)
        seen.update(names)
    for name in [name for names in reversed(by_class) for name in names]:
        test = getattr(kit, name)
        source = inspect.getsource(test)
        is_written = "self.check(" not in source and "check_machine" not in source
        for case, values in _parameters(test):
            yield name + case, is_written, partial(_call, test, values)


def _call(test: Callable[..., None], values: dict[str, Any], kit: Any) -> None:
    test(kit, **values)


def _parameters(test: Callable[..., None]) -> Iterator[tuple[str, dict[str, Any]]]:
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    if not marks:
        yield "", {}
        return
    (mark,) = marks
    name, values = mark.args
    ids = mark.kwargs.get("ids")
    labels = [str(value) for value in values] if ids is None or callable(ids) else list(ids)
    for label, value in zip(labels, values, strict=True):
        yield f"[{label}]", {name: value}
