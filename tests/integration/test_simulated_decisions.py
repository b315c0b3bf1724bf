"""A simulated run decides exactly what a real one does, when requests arrive before equal steps."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from paged_core.engine.clock import VirtualClock
from paged_core.engine.wiring import build_engine
from paged_core.interfaces.executor import Executor
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.settings.schema import settings_class
from paged_core.step import StepResult
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.run_workload import RecordedLoop, RunCollector, warm_up
from paged_plugins.lab.runs.work_count import WatchedExecutor
from paged_plugins.workloads.request import WorkloadRequest
from unit.lab_runs import REGISTRY, SECOND

pytestmark = pytest.mark.heavy


SIMULATED = {"executor": "simulated", "cost_model": SECOND}

TIGHT: Mapping[str, Mapping[str, Any]] = {
    "roomy": {"num_blocks": 200},
    "preempting": {"num_blocks": 22},
    "evicting": {"num_blocks": 40, "evictor": "slru", "watermark": 0.1},
    "swapping": {"num_blocks": 22, "preemption": "swap", "num_host_blocks": 30},
    "prefill first": {"num_blocks": 24, "scheduler": "prefill_or_decode"},
    "chunked": {
        "num_blocks": 24,
        "scheduler": {"name": "token_budget", "max_num_batched_tokens": 16},
        "victim": "fewest_computed",
        "queue_order": "longest_prefix",
    },
    "fair": {"num_blocks": 26, "queue_order": "fair", "victim": "most_blocks"},
    "reserved": {"num_blocks": 60, "block_allocator": "contiguous", "preemption": "never"},
    "merged": {
        "num_blocks": 24,
        "block_allocator": {"name": "hash_cached", "merge_duplicates": True},
    },
}
QUICK = {"preempting", "swapping", "prefill first", "chunked"}
"""The others are run by `make test-long`."""


class Decisions(Observer):
    """Notes all that a step decided, down to the blocks."""

    def __init__(self) -> None:
        self.steps: list[object] = []

    def on_step(self, step: StepRecord, /) -> None:
        queues = [
            [group.id for group in queue]
            for queue in (step.queues.running, step.queues.waiting, step.queues.swapped)
        ]
        self.steps.append(
            (
                dict(step.scheduled),
                dict(step.cached),
                [*step.preempted],
                [*step.swapped_out],
                [*step.swapped_in],
                [*step.finished],
                queues,
                step.free_blocks,
                [*step.evicted],
                dict(step.hits),
            )
        )


class Metronome(WatchedExecutor):
    """Hands every call on, and lets a second pass for each step."""

    def __init__(self, inner: Executor, clock: VirtualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def collect(self, handle: Any, /) -> StepResult:
        result = super().collect(handle)
        self._clock.sleep(1.0)
        return result


def workload(seed: int) -> list[WorkloadRequest]:
    """Conversations behind a shared system prompt, and some requests for several sequences."""
    random, ids = Random(seed), iter(range(1000, 10**9, 1000))

    def own(least: int, most: int) -> range:
        start = next(ids)
        return range(start, start + random.randint(least, most))

    def turn(name: str, number: int, turns: int) -> WorkloadRequest:
        followers = (turn(name, number + 1, turns),) if number < turns else ()
        system = (range(100, 120),) if number == 1 else ()
        return WorkloadRequest(
            id=f"{name}.{number}",
            at=float(start if number == 1 else random.randint(0, 6)),
            prompt=(*system, own(3, 12)),
            output=random.randint(4, 20),
            n=random.choice([1, 1, 2, 3]),
            tenant=random.choice("ab"),
            followers=followers,
        )

    found = []
    for count in range(6):
        start = random.randint(0, 30)
        found.append(turn(f"r{count}", 1, random.randint(1, 3)))
    return sorted(found, key=lambda request: request.at)


def decide(values: Mapping[str, Any], seed: int) -> tuple[list[object], RunRecord]:
    settings = settings_class(REGISTRY)(**{"block_size": 4, "max_model_len": 128, **values})
    decisions, collector = Decisions(), RunCollector(50)
    is_real = settings.executor.name != "simulated"
    clock = VirtualClock()
    warm = None
    if is_real:
        warm = build_engine(settings, REGISTRY)
        warm_up(warm)
    engine = build_engine(
        *(settings, REGISTRY), clock=clock, observers=[collector, decisions], after=warm
    )
    try:
        if is_real:
            engine.executor = Metronome(engine.executor, clock)
        record = RecordedLoop(engine, collector, iter(workload(seed))).record()
    finally:
        engine.close()
    return decisions.steps, record


@pytest.mark.parametrize(
    "tight",
    [
        pytest.param(tight, id=name, marks=[] if name in QUICK else pytest.mark.long)
        for name, tight in TIGHT.items()
    ],
)
def test_decides_what_a_model_decides(tight: Mapping[str, Any]) -> None:
    real, by_model = decide({**tight, "executor": "local", "model": "demo"}, 1)
    simulated, without = decide({**tight, **SIMULATED}, 1)
    assert simulated == real
    assert by_model == without


def test_these_runs_meet_what_is_difficult() -> None:
    """Preemptions, swaps, hits on answers, forks and copies."""
    _, preempting = decide({**TIGHT["preempting"], **SIMULATED}, 1)
    assert preempting.totals.num_preemptions > 3
    assert preempting.totals.recomputed_tokens > 20
    assert preempting.totals.copied_blocks > 3
    _, swapping = decide({**TIGHT["swapping"], **SIMULATED}, 1)
    assert swapping.totals.swapped_blocks > 10
    _, roomy = decide({**TIGHT["roomy"], **SIMULATED}, 1)
    followers = [each for each in roomy.requests if not each.id.endswith(".1")]
    assert all(each.num_cached > 20 for each in followers), "answers are found in the cache"
