"""Errors of simulations of served runs, by model, system and weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_plugins.lab.cost_models.measured.tables import published_models
from paged_plugins.lab.fidelity.closed_loop import RowTask, Times, run_all
from paged_plugins.lab.fidelity.estimates import aiconfigurator_estimate
from paged_plugins.lab.fidelity.host_terms import is_fitted
from paged_plugins.lab.fidelity.served_rows import ServedRow
from paged_plugins.lab.fidelity.servers import measured_options, published_name
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.progress import Advance

MODELS = ("measured", "roofline", "aiconfigurator")
"""Whose times are judged, in the order of the table."""
_CLOSE = 1.05
"""Configurations whose times differ by less are not told apart."""
_ROOFLINE = {"h100_sxm": "h100", "h200_sxm": "h200", "a100_sxm": "a100-80g"}
"""Devices of the roofline, of those systems; its weights have 16 bits."""


@dataclass(slots=True)
class Judged:
    """A row, and the times that were found for it."""

    row: ServedRow
    found: dict[str, Times] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why there are none, by whose times they would be."""

    def error(self, whose: str, kind: str) -> float:
        """Return found / served - 1; ``kind``: ``ttft_ms`` or ``tpot_ms``."""
        return float(getattr(self.found[whose], kind) / getattr(self.row, kind)) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Shares: absolute errors of one kind of time over rows."""

    num_rows: int
    median: float
    p90: float

    @classmethod
    def of(cls, judged: Sequence[Judged], whose: str, kind: str) -> Figures | None:
        """Return the figures of the rows for which times were found; ``None``: there are none."""
        errors = [abs(each.error(whose, kind)) for each in judged if whose in each.found]
        if not errors:
            return None
        return cls(
            num_rows=len(errors),
            median=float(np.median(errors)),
            p90=float(np.quantile(errors, 0.9)),
        )


def sampled(rows: Sequence[ServedRow], most: int | None) -> list[ServedRow]:
    """Return at most so many rows of each group, evenly spread over them as they stand."""
    groups: dict[tuple[str, ...], list[ServedRow]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    chosen: list[ServedRow] = []
    for group in groups.values():
        count = min(most or len(group), len(group))
        chosen += [group[place * len(group) // count] for place in range(count)]
    return chosen


def judge(
    rows: Sequence[ServedRow], folder: Path, runner: Runner, advance: Advance
) -> list[Judged]:
    """Simulate rows under the cost models, and ask AIConfigurator for its estimates.

    Args:
        folder: of the package.
        runner: of the simulations.
        advance: called with the number of rows that are done.
    """
    judged = {row.id: Judged(row) for row in rows}
    alike: dict[tuple[Any, ...], list[ServedRow]] = defaultdict(list)
    for row in rows:
        if row.refusal is None:
            alike[row.server].append(row)
        else:
            judged[row.id].refused["measured"] = row.refusal
    for ran in run_all(runner, [_Alike(tuple(each), folder) for each in alike.values()]):
        for place, row in enumerate(ran.task.rows):
            each = judged[row.id]
            answers = ran.record[place] if ran.record else {MODELS[0]: str(ran.problem)}
            for whose, times in answers.items():
                if isinstance(times, Times):
                    each.found[whose] = times
                else:
                    each.refused[whose] = times
        advance(len(ran.task.rows))
    return list(judged.values())


@dataclass(frozen=True, slots=True)
class _Alike:
    """Rows of one server, whose tables and estimator are read once."""

    rows: Sequence[ServedRow]
    folder: Path

    def serve(self, registry: Registry) -> list[dict[str, Times | str]]:
        """Return for each row the times, or why there are none, by whose they are."""
        known: dict[tuple[Any, ...], dict[str, Times | str]] = {}
        answers = []
        for row in self.rows:
            load = row.load, row.is_public, row.version
            if load not in known:
                known[load] = self._answers(row, registry)
            answers.append(known[load])
        return answers

    def _answers(self, row: ServedRow, registry: Registry) -> dict[str, Times | str]:
        def simulated(options: Callable[[ServedRow, Path], dict[str, Any]]) -> Times | str:
            try:
                chosen = options(row, self.folder)
                return RowTask(row=row, cost_model=chosen).serve(registry)
            except SettingsError as error:
                return str(error).replace("cost_model: ", "").partition(";")[0]

        found = {"measured": simulated(measured_options)}
        if isinstance(found["measured"], Times):
            found["roofline"] = simulated(roofline_options)
            found["aiconfigurator"] = aiconfigurator_estimate(row)
        return found


def roofline_options(row: ServedRow, folder: Path) -> dict[str, Any]:
    """Return the options of the cost model ``roofline`` for a row.

    Raises:
        SettingsError: it does not know the system or the weights.
    """
    device = _ROOFLINE.get(row.system)
    if device is None or row.weights != "bfloat16":
        raise SettingsError(f"roofline knows no {row.weights} on {row.system}")
    path = published_models(folder).get(published_name(row.model))
    return {
        "name": "roofline",
        "device": device,
        "model": str(path),
        "tensor_parallel": row.tensor_parallel,
    }


def ranked(judged: Iterable[Judged], whose: str) -> tuple[int, int]:
    """Return how many pairs of configurations are ordered rightly by their time per token, and how
    many there are: under one load, served at least 5% apart."""
    loads: dict[tuple[Any, ...], list[Judged]] = defaultdict(list)
    for each in judged:
        if whose in each.found:
            loads[each.row.load].append(each)
    right = total = 0
    for rows in loads.values():
        for one, other in combinations(rows, 2):
            low, high = sorted((one, other), key=lambda each: each.row.tpot_ms)
            if high.row.tpot_ms > _CLOSE * low.row.tpot_ms:
                total += 1
                right += low.found[whose].tpot_ms < high.found[whose].tpot_ms
    return right, total


def refusals(judged: Iterable[Judged]) -> Counter[str]:
    """Return how many rows were not simulated, by reason."""
    return Counter(each.refused["measured"] for each in judged if "measured" in each.refused)


def document(judged: Sequence[Judged]) -> dict[str, Any]:
    """Return all figures as JSON has them."""
    groups: dict[tuple[str, str, str, str], list[Judged]] = defaultdict(list)
    for each in judged:
        groups[each.row.group].append(each)
    rows = []
    for (engine, model, system, weights), members in sorted(groups.items()):
        line: dict[str, Any] = {
            "engine": engine,
            "model": model,
            "system": system,
            "weights": weights,
            "fitted": is_fitted(members[0].row),
            "rows": len(members),
        }
        simulated = [each.found["measured"] for each in members if "measured" in each.found]
        line["simulated"] = len(simulated)
        if simulated:
            line["extrapolated"] = float(np.mean([each.extrapolated for each in simulated]))
        for whose in MODELS:
            for kind in ("ttft", "tpot"):
                figures = Figures.of(members, whose, f"{kind}_ms")
                if figures is not None:
                    line[f"{whose}_{kind}"] = {
                        "rows": figures.num_rows,
                        "median": figures.median,
                        "p90": figures.p90,
                    }
        rows.append(line)
    ranks = {}
    for whose in MODELS:
        right, total = ranked(judged, whose)
        if total:
            ranks[whose] = {"pairs": total, "right": right / total}
    return {"groups": rows, "ranks": ranks, "not_simulated": dict(refusals(judged).most_common())}
