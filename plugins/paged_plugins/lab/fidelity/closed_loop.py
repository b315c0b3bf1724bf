"""A closed loop: clients that ask again when they are answered, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import numpy as np

from paged_core.engine.wiring import build_engine
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.lab.fidelity.served_rows import ServedRow
from paged_plugins.lab.fidelity.servers import engine_values, serving
from paged_plugins.lab.runs.run_workload import ClosedLoop, RunCollector
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.workloads.request import WorkloadRequest

_ROUNDS = 10
"""Requests of each client in the benchmarks."""
_FEWEST_ROUNDS = 3
_MOST_STEPS = 8192
"""Tokens that a client is answered, above which fewer rounds than the benchmark's are run."""
_MOST_REQUESTS = 48
"""Likewise: requests of all clients."""
_LONG_ANSWER = 4096
_MANY_TOKENS = 65_536
"""Tokens that all clients are answered in a round, above which two rounds are run."""
_SPREAD = 0.005
"""Mean of the seconds, exponentially spread, between a client's answer and its next request:
what a client and a server's front end take."""


@dataclass(frozen=True, slots=True)
class Times:
    """Means over the requests of a run, in milliseconds."""

    ttft_ms: float
    tpot_ms: float
    extrapolated: float = 0.0
    """Share of steps of which a kernel was larger than those that were measured."""


def rounds_of(row: ServedRow) -> int:
    """Return how many requests of each client are simulated.

    All rounds but the first, in which all clients ask at once, are alike; what is left out of them
    is made up for by their weight.
    """
    if row.osl >= _LONG_ANSWER or row.clients * row.osl > _MANY_TOKENS:
        return 2
    few = max(_FEWEST_ROUNDS, min(_MOST_STEPS // row.osl, -(-_MOST_REQUESTS // row.clients)))
    return min(_ROUNDS, few)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTask:
    """A simulation of a row; a process can be told to run it."""

    row: ServedRow
    cost_model: Mapping[str, Any]

    def serve(self, registry: Registry) -> Times:
        """Simulate the row.

        Raises:
            SettingsError: the model was not measured so, or does not fit into the GPUs.
        """
        values = engine_values(self.row, self.cost_model)
        collector = RunCollector(2)
        engine = build_engine(settings_class(registry)(**values), registry, observers=[collector])
        try:
            loop = _RowLoop(engine, collector, self.row)
            record = loop.record()
        finally:
            engine.close()
        if record.first_told is not None:
            raise SettingsError(record.first_told)
        later = (_ROUNDS - 1) / (rounds_of(self.row) - 1)
        weight, ttft, tpot = [], [], []
        for each in record.requests:
            weight.append(1.0 if int(each.id) < self.row.clients else later)
            assert each.first_token is not None
            ttft.append(each.first_token - each.arrival + loop.delays[each.id])
            tpot.append(each.time_per_token or 0.0)
        return Times(
            1000 * float(np.average(ttft, weights=weight)),
            1000 * float(np.average(tpot, weights=weight)),
            record.totals.extrapolated_steps / record.totals.num_steps,
        )


class _RowLoop(ClosedLoop):
    """Serves a row's clients; each asks anew when it is answered."""

    def __init__(self, engine: Any, collector: RunCollector, row: ServedRow) -> None:
        self._row = row
        self._random = Random(0)
        self._shortest = serving(row).shortest
        self._left = row.clients * (rounds_of(row) - 1)
        self._asked = 0
        self.delays: dict[str, float] = {}
        """By id, the seconds before a request reached the engine, which its client waits, too."""
        first = [self._draw(0.0) for _ in range(row.clients)]
        super().__init__(engine, collector, sorted(first, key=lambda each: each.at))

    def _draw(self, now: float) -> WorkloadRequest:
        row, name = self._row, str(self._asked)
        self._asked += 1
        self.delays[name] = delay = self._random.expovariate(1 / _SPREAD)
        prompt, output = (
            self._random.randint(max(1, int(self._shortest * length)), length)
            for length in (row.isl, row.osl)
        )
        return WorkloadRequest(
            id=name, at=now + delay, prompt=(range(prompt),), output=max(2, output)
        )

    def next_request(self, now: float) -> WorkloadRequest | None:
        if not self._left:
            return None
        self._left -= 1
        return self._draw(now)


def run_all(runner: Runner, tasks: Sequence[Any]) -> Iterator[Any]:
    """Yield what came of tasks that are not those of a study, when each has ended."""
    return cast("Callable[[Sequence[Any]], Iterator[Any]]", runner)(tasks)
