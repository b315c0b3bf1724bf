"""Serves a workload on simulated replicas and on real ones, and compares what both did.

    python tools/replicas_and_simulation.py --weights demo.yaml [--replicas 2] [--router session]

The weights are those that `paged-core calibrate --model demo --threads 1 --output demo.yaml` fits.
Both serve equal prompts at equal times behind the same router: when a turn of a conversation
arrives is taken from a simulation, and the answers that its prompt repeats are made up, not what
the model says. So the prefix cache finds earlier prompts, and not earlier answers. The real engines
are processes here; their caches are written once and emptied before the run.

What a request costs that finds its engine idle was calibrated in one process. Here it has to reach
another one, beside others, and so is measured again: by requests one at a time, before those that
are compared. It is the weight ``wake`` of the simulation. Prints a table, or JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from paged_core import AsyncLLM
from paged_core.cli.output import print_table
from paged_core.errors import PagedCoreError, SettingsError
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.settings.schema import EngineSettings, settings_class
from paged_core.text.outputs import RequestOutput
from paged_plugins.lab.calibration.calibrate import MeasuredStep
from paged_plugins.lab.cluster.simulate_cluster import simulate_cluster
from paged_plugins.lab.cost_model import CostModelContext, StepWork
from paged_plugins.lab.cost_models.linear import LinearCost
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.runs.run_record import RequestRecord, RunRecord
from paged_plugins.lab.settings import LinearSettings
from paged_plugins.replicas.replicas import Replicas
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.request import FIRST_OWN_ID, ContentIds, Part, WorkloadRequest
from paged_plugins.workloads.serving import Arrival, Arrivals, exact_sampling
from paged_plugins.workloads.spec import parse_spec
from paged_plugins.workloads.workload import ListedWorkload, Workload

CONVERSATIONS = {
    "name": "conversations",
    "about": "those of examples/cluster/conversations.yaml, as the demo model can serve them",
    "requests": 300,
    "arrivals": {"poisson": {"rate": 2}},
    "lengths": {
        "prompt": {"lognormal": {"median": 40, "sigma": 0.8, "min": 4, "max": 200}},
        "output": {"uniform": [4, 24]},
    },
    "max_tokens": 1000,
    "prefixes": {
        "system": {"tokens": 256, "count": 12, "exponent": 1},
        "conversation": {"turns": {"uniform": [2, 8]}, "think": {"exponential": 2}},
    },
}
VOCABULARY = 2048
"""Tokens of the demo model."""
_APART = 1000.0
"""Seconds between simulated requests that are served in turn."""
_RESTS = (0.05, 0.15, 0.1, 0.2)
"""Seconds before each request that wakes an engine up."""
_WAKES = 12
"""Such requests for each replica."""
_LONG = 1000
"""Tokens of a request by which caches are written before a run: what the demo model can serve."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """Outcome of the requests of a run."""

    requests: list[RequestRecord]
    replica_of: dict[str, int]
    """By the id of each request."""

    def requests_per_replica(self, num_replicas: int) -> list[int]:
        """Return how many were routed to each replica."""
        chosen = list(self.replica_of.values())
        return [chosen.count(number) for number in range(num_replicas)]

    def measure(self, name: str) -> float:
        """Return what the lab measures of the requests."""
        return measures(RunRecord(requests=self.requests), ServiceLevel())[name]


def simulate(
    settings: EngineSettings, registry: Registry, workload: Workload, num_replicas: int, seed: int
) -> Served:
    """Serve a workload on simulated replicas."""
    found = Served(requests=[], replica_of={})

    def ended(request: RequestRecord, replica: int) -> None:
        found.requests.append(request)
        found.replica_of[request.id] = replica

    simulate_cluster(
        *(settings, registry, workload, seed), num_replicas=num_replicas, on_request=ended
    )
    return found


def in_the_open(workload: Workload, times: dict[str, float], seed: int) -> ListedWorkload:
    """Return the same requests, none of which waits for another one: each has its time and its
    whole prompt, in which made-up tokens stand for answers."""
    answers = ContentIds(2 * FIRST_OWN_ID)
    found = list[WorkloadRequest]()
    for first in workload.draw(seed):
        before: dict[str | None, tuple[Part, ...]] = {None: ()}
        for request, follows in first.links():
            prompt = (*before[follows], *request.prompt)
            before[request.id] = (*prompt, answers.take(request.output))
            found.append(replace(request, at=times[request.id], prompt=prompt, followers=()))
    return ListedWorkload(workload.name, sorted(found, key=lambda each: each.at))


async def serve(
    llm: AsyncLLM, workload: ListedWorkload, num_slots: int, in_turn: bool
) -> tuple[Served, list[MeasuredStep]]:
    """Serve a workload on real replicas, each request at its time.

    Args:
        num_slots: tokens that the cache of a replica holds.
        in_turn: serve each when the one before it has ended, whatever its time.

    Returns:
        What became of it, and the times to the first token of requests before it that found their
        engine idle; of none, if ``in_turn``.
    """
    client = llm.client
    assert isinstance(client, Replicas)
    found = Served(requests=[], replica_of={})

    def ask(request: Request) -> tuple[int, asyncio.Task[RequestOutput]]:
        before = client.replicas()
        stream = client.generate(request)
        for was, now in zip(before, client.replicas(), strict=True):
            if now.num_routed > was.num_routed:
                return now.number, asyncio.create_task(stream.wait())
        raise AssertionError("no replica was given the request")

    async with llm:
        while (reason := client.health().reason) is not None:
            if not any(each.state in ("starting", "restarting") for each in client.replicas()):
                raise SettingsError(f"not all replicas can be started: {reason}")
            await asyncio.sleep(0.05)
        for request in warm_ups(len(client.replicas()) * -(-num_slots // _LONG), _LONG, 4):
            await ask(request)[1]
        woken = list[MeasuredStep]()
        for place in range(0 if in_turn else len(client.replicas()) * _WAKES):
            await asyncio.sleep(_RESTS[place % len(_RESTS)])
            (request,) = warm_ups(1, 32 * (1 + place % 7), 1, first=_LONG + place)
            output = await ask(replace(request, arrival=asyncio.get_running_loop().time()))[1]
            woken.append(woken_up(len(request.prompt), output))
        await client.reset_prefix_cache()
        arrivals, asked = Arrivals(workload.requests, VOCABULARY), []
        start = asyncio.get_running_loop().time()  # a time of the clock of the engines, too
        while (at := arrivals.next_at) is not None:
            if not in_turn:
                await asyncio.sleep(start + at - asyncio.get_running_loop().time())
            for arrival in arrivals.due(at):
                number, answer = ask(arrival.asked(start))
                found.replica_of[arrival.request.id] = number
                asked.append((arrival, answer))
                if in_turn:
                    await answer
        for arrival, answer in asked:
            found.requests.append(recorded(arrival, await answer, start))
    return found, woken


def warm_ups(count: int, length: int, output: int, first: int = 0) -> Iterator[Request]:
    """Yield requests that share no block; if they are as many for each replica as fill its cache,
    they change nothing for routers that take turns among equals."""
    for number in range(first, first + count):
        prompt = tuple((number + place) % VOCABULARY for place in range(length))
        name = f"warm-up {number} of {length}"
        yield Request(id=name, prompt=prompt, sampling=exact_sampling(1, output))


def woken_up(length: int, output: RequestOutput) -> MeasuredStep:
    """Return the step that a request with such a prompt made alone, with the way to it."""
    times = output.metrics
    assert times.first_token is not None
    pairs = length * (length + 1) // 2
    work = StepWork(prefill_tokens=length, prefill_sequences=1, prefill_pairs=pairs, sampled_rows=1)
    return MeasuredStep(work, times.first_token - times.arrival)


def with_wake(settings: EngineSettings, woken: Sequence[MeasuredStep]) -> LinearSettings:
    """Return the weights of a simulation with what these steps took beyond them as ``wake``."""
    given = dict(settings)["cost_model"]
    assert isinstance(given, LinearSettings)
    at_once = given.model_copy(update={"wake": 0.0})
    model = LinearCost(at_once, CostModelContext(settings=settings))
    late = median(step.seconds - model.seconds(step.work) for step in woken)
    return given.model_copy(update={"wake": max(0.0, late)})


def recorded(arrival: Arrival, output: RequestOutput, start: float) -> RequestRecord:
    """Return a request that real engines served as the lab records it."""
    times, reason = output.metrics, output.outputs[0].finish_reason
    assert times.finished is not None and reason is not None
    return RequestRecord(
        id=arrival.request.id,
        arrival=arrival.at,
        admitted=arrival.at,  # when it really was is not told
        first_token=times.first_token and times.first_token - start,
        finished=times.finished - start,
        num_prompt=len(arrival.prompt),
        num_cached=output.num_cached_tokens or 0,
        num_output=sum(len(each.token_ids) for each in output.outputs),
        num_preemptions=0,
        finish_reason=reason.value,
    )


def compare(
    workload: Workload,
    router: Any,
    num_replicas: int,
    *,
    weights: dict[str, Any],
    seed: int = 0,
    in_turn: bool = False,
    **values: Any,
) -> tuple[Served, Served]:
    """Serve a workload on simulated replicas of the demo model and on real ones.

    Args:
        weights: the cost model of the simulation.
        in_turn: serve each request when the one before it has ended; no times can be compared.
        values: other settings of each engine.
    """
    registry = Registry.discover()
    values = {"num_blocks": 512, "threads": 1, "seed": 0, **values}
    make = settings_class(registry)
    simulated = make(executor="simulated", cost_model=weights, router="round_robin", **values)
    first = simulate(simulated, registry, workload, num_replicas, seed)
    times = {each.id: each.arrival for each in first.requests}
    equal = in_the_open(workload, times, seed)
    if in_turn:
        spaced = (replace(each, at=_APART * place) for place, each in enumerate(equal.requests))
        equal = ListedWorkload(equal.name, list(spaced))
    simulated = make(executor="simulated", cost_model=weights, router=router, **values)
    llm = AsyncLLM(replicas={"count": num_replicas, "router": router}, **values)
    assert simulated.num_blocks is not None
    num_slots = simulated.num_blocks * simulated.block_size
    real, woken = asyncio.run(serve(llm, equal, num_slots, in_turn))
    if woken:
        simulated = simulated.model_copy(update={"cost_model": with_wake(simulated, woken)})
    return simulate(simulated, registry, equal, num_replicas, seed), real


def row_of(simulated: Served, real: Served, num_replicas: int) -> dict[str, Any]:
    """Return what is compared of two runs."""
    both = (simulated, real)
    hit_rates = [100 * each.measure("hit_rate") for each in both]
    ttfts = [each.measure("ttft_ms_p50") for each in both]
    alike = sum(simulated.replica_of[each] == chosen for each, chosen in real.replica_of.items())
    return {
        "requests": [each.requests_per_replica(num_replicas) for each in both],
        "routed_alike": alike / len(real.replica_of),
        "hit_rate_percent": hit_rates,
        "ttft_ms_p50": ttfts,
        "ttft_difference_percent": 100 * (ttfts[0] / ttfts[1] - 1),
    }


def text_of(row: dict[str, Any]) -> Sequence[str]:
    """Return the cells of a comparison after its first two."""
    counts = [" + ".join(map(str, each)) for each in row["requests"]]
    (hits, real_hits), (ttft, real_ttft) = row["hit_rate_percent"], row["ttft_ms_p50"]
    return [
        *counts,
        f"{100 * row['routed_alike']:.1f}%",
        *(f"{hits:.2f}%", f"{real_hits:.2f}%", f"{hits - real_hits:+.2f}"),
        *(f"{ttft:.2f}", f"{real_ttft:.2f}", f"{row['ttft_difference_percent']:+.1f}%"),
    ]


HEAD = ["replicas", "router", "requests, simulated", "real", "alike"]
HEAD += ["hit rate", "real", "points", "TTFT p50 ms", "real", "difference"]


def main() -> int:
    """Compare, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", nargs="?", help="a name or a file (default: conversations)")
    parser.add_argument("--weights", type=Path, required=True, help="what calibrate wrote")
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--router", nargs="+", default=["round_robin", "prefix_affinity"])
    parser.add_argument("--num-blocks", type=int, default=512, help="of each replica")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faster", type=float, default=1.0, help="first arrivals, so many times")
    parser.add_argument("--in-turn", action="store_true", help="none before the last one's end")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    weights = {"name": "linear", "file": str(asked.weights)}
    rows = []
    try:
        spec = (
            workload_spec(asked.workload)
            if asked.workload
            else parse_spec(CONVERSATIONS, "the default workload")
        )
        workload = spec.faster(asked.faster).build()
        for count, router in product(asked.replicas, asked.router):
            given = (workload, router, count)
            options = {"seed": asked.seed, "in_turn": asked.in_turn, "num_blocks": asked.num_blocks}
            runs = compare(*given, weights=weights, **options)
            rows.append({"replicas": count, "router": router, **row_of(*runs, count)})
    except PagedCoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if asked.json:
        sys.stdout.write(f"{json.dumps(rows)}\n")
    else:
        print_table("", HEAD, [[str(r["replicas"]), r["router"], *text_of(r)] for r in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
