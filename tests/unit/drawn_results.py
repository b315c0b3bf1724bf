"""Results of arms that were never run: drawn, with known effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord, RunTotals, StepSample
from paged_plugins.lab.runs.time_histogram import bucket
from paged_plugins.lab.study.arms import BASE, Arm

SLO = ServiceLevel(ttft_ms=500, tpot_ms=50)
BLOCKS, BLOCK_SIZE = 256, 16


def drawn_record(seed: int, *, slower: float = 1.0, num_requests: int = 40) -> RunRecord:
    """Return the record of a run whose latencies are ``slower`` times those of the base."""
    random = Random(seed)
    requests, time = [], 0.0
    for number in range(num_requests):
        time += random.expovariate(4)
        wait = slower * random.expovariate(20)
        first = time + wait + slower * random.lognormvariate(-2, 0.5)
        tokens = random.randint(2, 200)
        requests.append(
            RequestRecord(
                id=f"r{number}",
                arrival=time,
                admitted=time + wait,
                first_token=first,
                finished=first + slower * 0.02 * (tokens - 1),
                num_prompt=200,
                num_cached=16 * random.randint(0, 10),
                num_output=tokens,
                num_preemptions=0,
                finish_reason="length",
            )
        )
    return RunRecord(
        requests=requests,
        steps=[_step(random, number, time / 400) for number in range(400)],
        totals=RunTotals(
            num_steps=400,
            busy_seconds=0.9 * time,
            elapsed=max(each.finished for each in requests),
            num_preemptions=random.randint(0, 9),
            num_evictions=random.randint(100, 200),
            held_share=0.5 + random.random() / 10,
            reserved_share=0.1,
            internal_share=random.random() / 50,
        ),
        token_gaps={bucket(slower * 0.02): 1000, bucket(slower * 0.1): 20},
    )


def _step(random: Random, number: int, seconds: float) -> StepSample:
    busy = min(1.0, number / 100)
    free = BLOCKS - round(busy * 200) - random.randint(0, 20)
    held = round(0.8 * (BLOCKS - free) * BLOCK_SIZE)
    return StepSample(
        time=number * seconds,
        seconds=0.9 * seconds,
        num_running=round(busy * 20) + random.randint(0, 4),
        num_waiting=random.randint(0, 10),
        num_swapped=0,
        prefill_tokens=random.choice((0, 0, 200, 1000)),
        decode_tokens=round(busy * 20),
        num_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        free_blocks=free,
        cached_blocks=free // 2,
        held_tokens=held,
        reserved_tokens=(BLOCKS - free) * BLOCK_SIZE - held - 32,
    )


def drawn_results(
    slower: Mapping[str, float],
    *,
    workloads: Sequence[str] = ("chat",),
    seeds: int = 8,
    records: bool = True,
    manifest: Mapping[str, Any] | None = None,
) -> Results:
    """Return results of a base and of arms by label, so many times slower than it."""
    factors = {BASE: 1.0, **slower}
    made = {
        (arm, workload, seed): drawn_record(seed, slower=factor)
        for arm, factor in factors.items()
        for workload in workloads
        for seed in range(seeds)
    }
    return Results(
        arms=[
            Arm(
                label=label,
                changes=dict([label.split("=", 1)]) if "=" in label else {},
                axis=label.split("=")[0] if label != BASE else None,
            )
            for label in factors
        ],
        workloads=workloads,
        seeds=range(seeds),
        runs=[
            RunResult(arm=arm, workload=workload, seed=seed, measures=measures(record, SLO))
            for (arm, workload, seed), record in made.items()
        ],
        slo=SLO,
        manifest=manifest or {},
        record=lambda arm, workload, seed: made[arm, workload, seed] if records else None,
    )
