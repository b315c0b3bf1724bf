"""Runs the conformance classes on components that are wrong on purpose, until a test fails."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType, ModuleType
from typing import Any

import pytest

from conformance import test_evictors, test_orders, test_victims
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_plugins.lab.testing import CostModelConformance
from paged_plugins.replicas.testing import ReplicasConformance
from paged_plugins.server.testing import RoutesConformance, ServerConformance
from paged_policies.allocators.contiguous import ContiguousAllocator
from paged_policies.allocators.hash_cached import HashCachedAllocator
from paged_testing import (
    AdmissionConformance,
    AttentionConformance,
    BlockAllocatorConformance,
    CommunicatorConformance,
    ComponentConformance,
    EvictorConformance,
    ExecutorConformance,
    GrammarConformance,
    LengthPredictorConformance,
    ObserverConformance,
    PreemptionConformance,
    QueueOrderConformance,
    RunnerConformance,
    SchedulerConformance,
    VictimConformance,
)
from unit import faulty_admissions as admissions
from unit import faulty_allocators as allocators
from unit import faulty_attention as attention
from unit import faulty_communicators as communicators
from unit import faulty_components as components
from unit import faulty_cost_models as cost_models
from unit import faulty_evictors as evictors
from unit import faulty_executors as executors
from unit import faulty_grammars as grammars
from unit import faulty_observers as observers
from unit import faulty_parsers as parsers
from unit import faulty_policies as policies
from unit import faulty_predictors as predictors
from unit import faulty_replicas as replicas
from unit import faulty_routes as routes
from unit import faulty_runners as runners
from unit import faulty_schedulers as schedulers
from unit import faulty_servers as servers
from unit import faulty_settings as settings


@dataclass(frozen=True)
class Mutant:
    """A component that is wrong on purpose, and the class that has to find it out."""

    conformance: type[ComponentConformance]
    settings: type[ComponentSettings]
    made: type
    check: str = ""
    """The function of ``faulty_components`` that says whether it can run here."""

    @property
    def name(self) -> str:
        return self.check or self.made.__name__


@dataclass(frozen=True)
class Caught:
    """The first test that failed."""

    case: str
    error: BaseException
    seconds: float


class WithPath(ObserverConformance):
    """Cases of an observer that writes a file."""

    def table(self, folder: Path) -> dict[str, Any]:
        return {"name": "faulty", "path": str(folder / "faulty.txt")}


_PLAIN = settings.FaultySettings
_BUDGET = settings.FaultyTokenBudgetSettings
_SLOTS: tuple[tuple[ModuleType, str, type[ComponentConformance], type[ComponentSettings]], ...] = (
    (admissions, "Admission", AdmissionConformance, _PLAIN),
    (allocators, "Allocator", BlockAllocatorConformance, _PLAIN),
    (evictors, "Evictor", EvictorConformance, _PLAIN),
    (policies, "Order", QueueOrderConformance, _PLAIN),
    (policies, "Quantum", QueueOrderConformance, _PLAIN),
    (policies, "Victim", VictimConformance, _PLAIN),
    (policies, "Preemption", PreemptionConformance, _PLAIN),
    (predictors, "Predictor", LengthPredictorConformance, _PLAIN),
    (schedulers, "Scheduler", SchedulerConformance, _BUDGET),
    (observers, "Observer", ObserverConformance, _PLAIN),
    (executors, "Executor", ExecutorConformance, executors.FaultyMemorySettings),
    (cost_models, "CostModel", CostModelConformance, _PLAIN),
    (attention, "Attention", AttentionConformance, _PLAIN),
    (communicators, "Communicator", CommunicatorConformance, _PLAIN),
    (grammars, "Grammar", GrammarConformance, _PLAIN),
    (parsers, "Format", parsers.HermesCases, _PLAIN),
    (replicas, "Replicas", ReplicasConformance, _PLAIN),
    (routes, "Routes", RoutesConformance, _PLAIN),
    (servers, "Server", ServerConformance, servers.FaultyServerSettings),
    (runners, "Runner", RunnerConformance, runners.FaultyNativeSettings),
)
"""Modules of mutants, how the names of their classes end, who must find them, their options."""
_OPTIONS = {
    observers.FixedPathObserver: settings.FaultyPathSettings,
    parsers.FixedMarkFormat: settings.FaultyMarkSettings,
    parsers.FixedMarksThinkFormat: settings.FaultyMarkSettings,
    schedulers.MemoryScheduler: settings.FaultyStepSettings,
    schedulers.OverdrawingScheduler: settings.FaultyBudgetSettings,
    cost_models.TightCostModel: settings.FaultyLimitSettings,
    attention.LimitedAttention: settings.FaultyLimitSettings,
    policies.FirstOptionsOrder: settings.FaultyLimitSettings,
    policies.PairPreemption: settings.FaultyPairSettings,
    policies.PREEMPTIONS["ClampedPreemption"]: settings.FaultyLimitSettings,
    HashCachedAllocator: settings.FaultyHashCachedSettings,
    ContiguousAllocator: settings.FaultyContiguousSettings,
}
"""Options of mutants of these components."""
_WITH_EXPECTATION: Mapping[str, type[ComponentConformance]] = {
    "WrongTieEvictor": test_evictors.TestLru,
    "StrandingEvictor": test_evictors.TestRandomOfLeaves,
    "DeafEvictor": test_evictors.TestQueueInformedLru,
    "ReversedOrder": test_orders.TestFcfs,
    "SaltedOrder": test_orders.TestFcfs,
    "OldestVictim": test_victims.TestNewest,
    "EndedVictim": test_victims.TestMostRemaining,
    "StaleVictim": policies.ByLengthCases,
    "EndedPreemption": policies.ByOutputCases,
    "ClampedPreemption": policies.ByOptionCases,
    "PlannedVictim": test_victims.TestFewestComputed,
    "DoublingVictim": test_victims.TestMostBlocks,
    "OnceMoreVictim": test_victims.TestMostBlocksThatSpares,
    "PreemptedOrder": test_orders.TestFcfs,
    "FixedPathObserver": WithPath,
    **{name: parsers.ThinkCases for name in vars(parsers) if name.endswith("ThinkFormat")},
}
"""Mutants that another class finds: by what it expects, or of another slot."""


def _mutants() -> Iterator[Mutant]:
    for module, noun, conformance, options in _SLOTS:
        for name, made in vars(module).items():
            is_right = name[0] == "_" or made is routes.ChoiceRoutes
            if name.endswith(noun) and not is_right and made.__module__ == module.__name__:
                own = [more for base, more in _OPTIONS.items() if issubclass(made, base)]
                yield Mutant(_WITH_EXPECTATION.get(name, conformance), [options, *own][-1], made)


_CHECKS = ("check_that_raises", "check_without_reason", "check_that_refuses")
MUTANTS: Sequence[Mutant] = (
    *_mutants(),
    Mutant(VictimConformance, _PLAIN, components.UnimportableVictim),
    Mutant(VictimConformance, _PLAIN, components.MisspeltVictim),
    *(Mutant(VictimConformance, _PLAIN, components.CheckedVictim, each) for each in _CHECKS),
    Mutant(VictimConformance, settings.FaultyLimitSettings, components.LimitedVictim),
    Mutant(VictimConformance, settings.FaultyOpenSettings, components.UnboundedVictim),
    Mutant(VictimConformance, settings.FaultyShareSettings, components.UnreadVictim),
)


def first_failure(mutant: Mutant, folder: Path) -> Caught | None:
    """Run the conformance class on a mutant, in the order of pytest, until a test fails.

    Args:
        folder: for files of observers; the present one.
    """
    conformance = mutant.conformance
    check = f"{components.__name__}:{mutant.check}" if mutant.check else None
    registry = settings.registry_of(conformance.slot, mutant.made, mutant.settings, check)

    class Kit(conformance):  # type: ignore[misc, valid-type]
        component = "faulty"
        settings = {"faulty_part": "faulty"} if "Part" in mutant.name else {}
        patience = 5.0  # of communicators

        def make_registry(self) -> Registry:
            return registry

    started = perf_counter()
    for case, run in _tests(Kit):
        kit = Kit()
        kit.__dict__["_folder"] = folder
        try:
            with _bounded():
                run(kit)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception, HasNotReturned) as error:  # noqa: BLE001
            return Caught(case, error, perf_counter() - started)
    return None


def recorded(
    mutant: Mutant, folder: Path, record_property: Callable[[str, object], None]
) -> tuple[Caught, str]:
    """Return which test finds a mutant and what it says, noted for ``make mutants``."""
    record_property("slot", mutant.conformance.slot)
    record_property("mutant", mutant.name)
    caught = first_failure(mutant, folder)
    assert caught is not None, f"no test noticed {mutant.name}"
    message = " ".join(f"{type(caught.error).__name__}: {caught.error}".split())
    record_property("caught by", caught.case)
    record_property("seconds", f"{caught.seconds:.1f}")
    record_property("message", message[:120].replace("|", "/"))
    return caught, message


class HasNotReturned(BaseException):
    """A test has taken too long; no ``Exception``, which engines would catch."""


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise in what computes for 20 s, or waits for 60, as pytest-timeout would."""

    def end(number: int, frame: FrameType | None) -> None:
        name = frame.f_code.co_qualname if frame else ""
        raise HasNotReturned(f"has not returned, in {name}")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, 20), (signal.SIGALRM, signal.ITIMER_REAL, 60))
    before = [(number, signal.signal(number, end)) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds, 0.5)  # an engine that recovers may wait again
    try:
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


def _tests(kit: type[ComponentConformance]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """The tests of a class in the order of pytest, with their parameters."""
    seen: set[str] = set()
    by_class = []
    for kind in kit.__mro__:
        names = [name for name in vars(kind) if name.startswith("test_") and name not in seen]
        by_class.append(names)
        seen.update(names)
    for name in [name for names in reversed(by_class) for name in names]:
        test = getattr(kit, name)
        for case, values in _parameters(test):
            yield name + case, partial(_call, test, values)


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
