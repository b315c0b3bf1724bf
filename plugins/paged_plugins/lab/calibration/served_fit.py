"""Terms of a cost model that are fitted to the loads that a server answered.

The loads are simulated; that gives the steps in which each time was spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.engine.wiring import build_engine
from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.calibration.calibrate import error_summary, robust_least_squares
from paged_plugins.lab.calibration.served_loads import ClosedLoad, ServedLoad
from paged_plugins.lab.cost_model import CostModelContext, StepWork
from paged_plugins.lab.cost_models.linear import PARTS, largest
from paged_plugins.lab.cost_models.weights_file import WeightsFile
from paged_plugins.lab.runs.run_workload import ClosedLoop, RunCollector
from paged_plugins.workloads.request import WorkloadRequest

Array = NDArray[np.float64]

_HELD_OUT = 4
"""One load of so many is not fitted to."""
_TURN = 1e-4
"""Seconds until a client that has its answer asks again: the step after it is planned by then."""


class _StepKeeper(RunCollector):
    """Keeps the work of every step, and when it ended."""

    def __init__(self) -> None:
        super().__init__(2)
        self.works: list[StepWork] = []
        self.ends: list[float] = []

    def step(
        self,
        engine: Engine,
        outcome: StepOutcome,
        work: Sequence[StepWork],
        began: float,
        ended: float,
    ) -> None:
        super().step(engine, outcome, work, began, ended)
        self.works += work
        self.ends += [ended] * len(work)


class _LoadLoop(ClosedLoop):
    """Serves a load; its clients ask in the order of its requests."""

    def __init__(self, engine: Engine, collector: RunCollector, load: ClosedLoad) -> None:
        super().__init__(engine, collector, load.requests[: load.clients])
        self._waiting = deque(load.requests[load.clients :])

    def next_request(self, now: float) -> WorkloadRequest | None:
        return replace(self._waiting.popleft(), at=now + _TURN) if self._waiting else None


@dataclass(frozen=True, slots=True)
class Observations:
    """Times that were seen of loads, and the steps that each of them is a sum of."""

    works: Sequence[StepWork]
    sums: Array
    """A line for each time: how often each step counts in it."""
    seconds: Array
    are_ttfts: Array
    """1 for times to a first token, 0 for those per later token."""
    are_held_out: NDArray[np.bool_]


def observe(
    served: Sequence[ServedLoad], settings: EngineSettings, registry: Registry
) -> Observations:
    """Simulate loads, and return the steps that their times are sums of.

    Clients that ask again at once make batches that do not depend on how long a step takes, so that
    any cost model finds the steps.

    Args:
        settings: of a simulation whose scheduler, batches and cache are the server's.

    Raises:
        SettingsError: such an engine cannot serve them.
    """
    works: list[StepWork] = []
    rows: list[tuple[int, Array]] = []
    seconds, are_ttfts, held_out = [], [], []
    for number, each in enumerate(served):
        keeper, first = _StepKeeper(), len(works)
        engine = build_engine(settings, registry, observers=[keeper])
        try:
            record = _LoadLoop(engine, keeper, each.load).record()
        finally:
            engine.close()
        unserved = next((one for one in record.requests if not one.is_served), None)
        if unserved is not None:
            raise SettingsError(
                f"these settings cannot serve a load that the server did: a request of "
                f"{unserved.num_prompt} tokens ended with {unserved.finish_reason!r} "
                f"({record.error or 'its length'}); give the server's max_model_len and num_blocks"
            )
        works += keeper.works
        ends = np.array(keeper.ends) - 1e-9
        by_id = {one.id: one for one in record.requests}
        for is_ttft, middle in ((True, each.ttft), (False, each.tpot)):
            if middle is None:
                continue
            counts = np.zeros(len(ends))
            for one in (by_id[name] for name in middle.ids):
                times = (one.arrival, one.first_token or 0.0, one.finished)
                bounds = np.searchsorted(ends, np.array(times), "right")
                start, stop = bounds[:2] if is_ttft else bounds[1:]
                counts[start:stop] += 1 / (1 if is_ttft else one.num_output - 1)
            rows.append((first, counts / len(middle.ids)))
            seconds.append(middle.seconds)
            are_ttfts.append(float(is_ttft))
            held_out.append(number % _HELD_OUT == 1)
    sums = np.zeros((len(rows), len(works)))
    for line, (first, counts) in zip(sums, rows, strict=True):
        line[first : first + len(counts)] = counts
    return Observations(works, sums, np.array(seconds), np.array(are_ttfts), np.array(held_out))


# ------------------------------------------------------------------ terms


_FITTED: Mapping[str, Sequence[str]] = {
    "linear": (
        *("fixed", "per_prefill_token", "per_prefill_pair"),
        *("per_decode_sequence", "per_context_token"),
    ),
    "roofline": ("step_overhead", "compute_efficiency", "memory_efficiency"),
    "measured": ("host_per_step", "host_per_sequence"),
}
"""Options of each cost model that are fitted, that of every step first; shares of peaks by their
reciprocals, less 1."""
_ROUNDS = 12
_NUDGE = 1e-3
_LEAST = 1e-6
"""Seconds of ``fixed``, which may not be 0."""


def check_fitted(settings: EngineSettings, registry: Registry) -> None:
    """Refuse a cost model that has no terms to fit, or cannot be made.

    Raises:
        SettingsError: it is such a one.
    """
    options = dict(settings)["cost_model"]
    if options.name not in _FITTED:
        raise SettingsError(
            f"cost_model {options.name!r} cannot be fitted to a server; those that can are "
            f"{', '.join(_FITTED)}"
        )
    make_component(registry, "cost_model", options, CostModelContext(settings=settings))


def calibrate_served(
    observed: Observations,
    settings: EngineSettings,
    registry: Registry,
) -> WeightsFile:
    """Fit the terms of the settings' cost model to three quarters of the loads.

    By Gauss and Newton, with least squares of relative errors in which large ones count less; what
    every request costs outside the engine (its way to the scheduler and back) is found with them,
    and belongs to no step.
    """
    options = dict(settings)["cost_model"]
    names = _FITTED[options.name]
    if options.name == "linear":
        options = options.model_copy(update=dict.fromkeys(PARTS, 0.0))
    context = CostModelContext(settings=settings)

    def filled(terms: Array) -> dict[str, float]:
        found = {n: _as_option(n, float(each)) for n, each in zip(names, terms, strict=False)}
        return {name: float(f"{each:.4g}") for name, each in found.items()}

    def predicted(terms: Array) -> Array:
        update = {n: _as_option(n, float(each)) for n, each in zip(names, terms, strict=False)}
        changed = options.model_copy(update=update)
        model = make_component(registry, "cost_model", changed, context)
        steps = np.array([model.seconds(work) for work in observed.works])
        return np.asarray(observed.sums @ steps + terms[-1] * observed.are_ttfts)

    fitted = ~observed.are_held_out
    start = np.array([*(_as_term(n, getattr(options, n)) for n in names), 1e-3])
    slow = start.copy()
    slow[0] = np.median(observed.seconds[observed.are_ttfts == 0])
    terms, found = min(
        (
            _gauss_newton(lambda each: (predicted(each) / observed.seconds)[fitted], begin)
            for begin in (start, slow)  # where a GPU hides its host, only a slower host matters
        ),
        key=lambda each: each.error,
    )[:2]
    errors = (predicted(terms) / observed.seconds - 1)[~fitted]
    kinds = observed.are_ttfts[~fitted] > 0
    unmeasured = {
        n: "no load tells it" for n, is_found in zip(names, found, strict=False) if not is_found
    }
    if options.name == "linear":
        unmeasured |= {n: "loads of a server do not tell it apart" for n in PARTS if n not in names}
    return WeightsFile(
        cost_model=options.name,
        options=_kept(options, names),
        weights={n: each for n, each in filled(terms).items() if n not in unmeasured},
        unmeasured=unmeasured,
        largest=largest(observed.works) if options.name == "linear" else {},
        errors={
            name: {"loads": int(chosen.sum()), **error_summary(errors[chosen].tolist())}
            for name, chosen in (("TTFT", kinds), ("time per token", ~kinds))
            if chosen.any()
        },
        measured={"seconds_per_request": float(f"{terms[-1]:.4g}")},
    )


def _kept(options: ComponentSettings, fitted: Sequence[str]) -> dict[str, Any]:
    """Return the options by which the file describes its cost model."""
    if options.name == "linear":
        return {}
    kept = options.model_dump(mode="json", exclude={"name", "file", *fitted})
    return {name: value for name, value in kept.items() if value is not None}


def _as_option(name: str, term: float) -> float:
    if name.endswith("_efficiency"):
        return 1 / (1 + term)
    return max(term, _LEAST) if name == "fixed" else term


def _as_term(name: str, option: float) -> float:
    return 1 / option - 1 if name.endswith("_efficiency") else option


class _Fit(NamedTuple):
    terms: Array
    matter: Sequence[bool]
    """True for each that changes any prediction."""
    error: float


def _gauss_newton(predicted: Callable[[Array], Array], start: Array) -> _Fit:
    """Return the terms, none below 0, that predict 1 with the least errors."""
    best, terms = _Fit(start, [], inf), start
    for _ in range(_ROUNDS):
        here = predicted(terms)
        nudges = _NUDGE * np.maximum(terms, np.maximum(start, 1e-9))
        columns = [
            (predicted(terms + nudge * (np.arange(len(terms)) == place)) - here) / nudge
            for place, nudge in enumerate(nudges)
        ]
        matrix = np.stack(columns, axis=1)
        error = float(np.abs(here - 1).sum())
        is_better = error < best.error
        if is_better:
            matter = np.abs(matrix * nudges).max(axis=0) > 1e-9
            best = _Fit(terms, matter.tolist(), error)
        after = robust_least_squares(matrix, 1 - here + matrix @ terms, terms)
        if np.allclose(after, terms, rtol=1e-6, atol=1e-12):
            break
        terms = after if is_better else (after + best.terms) / 2
    return best
