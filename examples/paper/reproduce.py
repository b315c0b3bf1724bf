"""Measures the figures of papers again.

python examples/paper/reproduce.py               all figures; takes half an hour of one core
python examples/paper/reproduce.py NAME...       some, by the name of their file
python examples/paper/reproduce.py --scale 0.1   a tenth of the requests
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from figure import Figure, figures, registry, run
from memory import while_requests_wait
from rates import at_rate, batch, normalised_latency, sustained
from sharing import saved
from table import Table

from paged_core.plugins.making import make_component
from paged_core.settings import EngineSettings
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_plugins.lab.runs.run_record import RunRecord
from paged_plugins.lab.runs.time_histogram import percentile

LATENCY = 0.1
"""Seconds per token; an unloaded engine needs a fifth of it."""
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def memory_shares(figure: Figure) -> Table:
    """Shares of the cache while requests wait."""
    rows = {}
    for arm in figure.arms:
        shares = while_requests_wait(records(figure, arm), figure.settings(arm).block_size)
        rows[arm] = [100 * each for each in shares]
    return Table(("", "token states, %", "reserved, %", "lost, %"), rows)


def sharing(figure: Figure, *, beams: bool) -> Table:
    """Blocks saved by samples of one prompt, or by beams."""
    (arm,) = figure.arms
    rows = {
        workload.name: [100 * saved(figure.settings(arm), workload, beams=beams)]
        for workload in figure.workloads
    }
    return Table(("lengths, sequences", "blocks saved, %"), rows)


def request_rate(figure: Figure) -> Table:
    """Rates that are sustained, as multiples too, and how many requests run at 2 per second.

    Arrivals last as long as the requests of the workload take to arrive at that rate.
    """
    (workload,) = figure.workloads
    seconds = (workload.requests or 1200) / 2
    rows: dict[str, Sequence[float]] = {}
    best = 0.0
    for arm in figure.arms:
        settings = figure.settings(arm)
        rate = sustained(settings, workload, latency=LATENCY, seconds=seconds)
        best = best or rate
        rows[arm] = rate, best / rate, batch(at_rate(settings, workload, 2, seconds))
    return Table(("", "requests/s", "vLLM's rate by it", "batch at 2 requests/s"), rows)


def shared_prefix(figure: Figure) -> Table:
    """Requests per second where all are there at the start."""
    rows = {}
    for workload in figure.workloads:
        rates = {}
        for arm in figure.arms:
            totals = run(figure.settings(arm), workload).totals
            rates[arm] = (workload.requests or 1) / totals.elapsed
        first, *_, last = rates.values()
        rows[workload.name] = [*rates.values(), first / last]
    return Table(("requests/s", *figure.arms, "ratio of the first and the last"), rows)


def block_size(figure: Figure) -> Table:
    """Milliseconds per token under load, and to restore 256 tokens, by block size."""
    rows = {}
    for size in BLOCK_SIZES:
        latencies = [
            1e3 * normalised_latency(run(settings, workload))
            for workload in figure.workloads
            for settings in (figure.settings(arm, block_size=size) for arm in figure.arms)
        ]
        rows[f"{size}"] = [*latencies, *restoring(figure.settings("swap", block_size=size))]
    runs = [f"{workload.name}, {arm}" for workload in figure.workloads for arm in figure.arms]
    return Table(("block size", *runs, "recompute 256 tokens", "swap 256 tokens"), rows)


def restoring(settings: EngineSettings) -> tuple[float, float]:
    """Milliseconds to compute 256 tokens again, and to move their blocks out and in."""
    context = CostModelContext(settings=settings)
    cost: CostModel = make_component(
        registry(), "cost_model", dict(settings)["cost_model"], context
    )
    pairs = 256 * 257 // 2
    idle = cost.seconds(StepWork())
    computed = cost.seconds(StepWork(prefill_tokens=256, prefill_pairs=pairs, sampled_rows=1))
    moved = cost.seconds(StepWork(swapped_blocks=2 * -(-256 // settings.block_size)))
    return 1e3 * (computed - idle), 1e3 * (moved - idle)


def chunked_prefill(figure: Figure) -> Table:
    """Times between the tokens of a sequence."""
    rows = {}
    for arm in figure.arms:
        (record,) = records(figure, arm)
        gaps = [percentile(record.token_gaps, share) or 0.0 for share in (0.5, 0.99, 0.999, 1.0)]
        ttft = fmean((each.first_token or each.finished) - each.arrival for each in record.requests)
        rows[arm] = [1e3 * each for each in (*gaps, ttft)]
    return Table(("ms", "median", "p99", "p99.9", "longest", "mean TTFT"), rows)


def kv_cache(figure: Figure) -> Table:
    """Time per token of one answer, by device."""
    rows = {}
    for device in ("a100-40g", "h100", "l4", "rtx-4070-laptop"):
        change = {"cost_model.device": device}
        times = [1e3 * _per_token(records(figure, arm, change)[0]) for arm in figure.arms]
        rows[device] = [*times, times[1] / times[0]]
    return Table(("ms per token", *figure.arms, "ratio"), rows)


def records(
    figure: Figure, arm: str, changes: Mapping[str, object] | None = None
) -> list[RunRecord]:
    """Run an engine on the only workload of a figure, once for each seed."""
    (workload,) = figure.workloads
    settings = figure.settings(arm, **(changes or {}))
    return [run(settings, workload, seed) for seed in range(figure.seeds)]


def _per_token(record: RunRecord) -> float:
    (request,) = record.requests
    assert request.first_token is not None
    return (request.finished - request.first_token) / (request.num_output - 1)


FIGURES: Mapping[str, Callable[[Figure], Table]] = {
    "memory_shares": memory_shares,
    "parallel_sampling": partial(sharing, beams=False),
    "beam_search": partial(sharing, beams=True),
    "request_rate": request_rate,
    "shared_prefix": shared_prefix,
    "block_size": block_size,
    "chunked_prefill": chunked_prefill,
    "chunked_prefill_demo": chunked_prefill,
    "kv_cache": kv_cache,
}
"""By the name of the file."""


def main(arguments: Sequence[str]) -> None:
    """Print the figures that are asked for."""
    parser = ArgumentParser(description="Measures the figures of papers again.")
    parser.add_argument("name", nargs="*", help=", ".join(FIGURES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    asked = parser.parse_args(arguments)
    known = figures()
    if unknown := [name for name in asked.name if name not in known]:
        parser.error(f"no figure is called {unknown[0]!r}; there are {', '.join(FIGURES)}")
    for name in asked.name or FIGURES:
        figure = known[name].scaled(asked.scale)
        print(f"{name}: {figure.about}\npublished: {figure.published}\n")
        print(f"{FIGURES[name](figure)}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
