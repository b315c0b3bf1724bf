"""Pictures of runs over time: the batch, the memory, and who held which block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_plugins.block_history import BlockHistory
from paged_plugins.lab.report.contents import Found, group_title
from paged_plugins.lab.report.pictures.drawing import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    WIDTH,
    Gallery,
    PictureGroup,
    inline_svg,
    legend_above,
    new_axes,
    printable,
    shortened,
)
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.runs.run_record import RunRecord, StepSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_BINS = 120
_SAMPLES_EACH = 4
_EQUAL = "Arms that equal the one that they are compared with are not drawn."
_PARTS = {"held": BLUE, "reserved": ORANGE, "wasted": VERMILLION, "cached": SKY}
_OWNERS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
SHARED, FREE = -1, -2
"""Instead of the number of a request that owns a block."""
_MOST_ROWS, _MOST_COLUMNS = 256, 640


def timelines(results: Results, found: Found, most: int) -> list[Gallery]:
    """Return pictures of the batch and of the memory, for arms that differ from their base.

    Args:
        most: pictures of each kind to draw.
    """
    equal: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    for each in found.values():
        equal[each.workload, each.arm].append(each.is_equal)
    places = [
        (workload, arm.label)
        for workload, arm in product(results.workloads, results.arms)
        if not (own := equal[workload, arm.label]) or not all(own)
    ]
    drawn: dict[str, dict[str, RunRecord]] = {workload: {} for workload in results.workloads}
    for workload, label in places[:most]:
        records = (results.record(label, workload, seed) for seed in results.seeds)
        record = next((each for each in records if each is not None), None)
        if record is not None and record.steps:
            drawn[workload][label] = record

    def gallery(question: str, how_to_read: str, name: str, draw: _Draw) -> Gallery:
        return Gallery(
            question=question,
            how_to_read=f"{how_to_read} {_EQUAL}",
            groups=[
                PictureGroup(
                    title=group_title(results, workload),
                    pictures=draw(f"{name}-{place}", drawn[workload]),
                )
                for place, workload in enumerate(results.workloads)
            ],
            num_left_out=max(0, len(places) - most),
        )

    return [
        gallery(
            "What did the batch look like?",
            "The first seed. Above: requests that run, and that wait. Below: the tokens that a step"
            " computes, those of prefills on top of those of decodes. Averages over short stretches"
            " of time; all arms of a workload have the same scales.",
            "batch",
            _batches,
        ),
        gallery(
            "What filled the memory?",
            "The first seed; shares of the cache's slots. Held: the state of a token. Reserved:"
            " allocated, and will hold one. Wasted: allocated, and never will (internal"
            " fragmentation). Cached: free, but still found as a prefix. The rest is free and"
            " empty.",
            "memory",
            _memories,
        ),
    ]


_Draw = Callable[[str, Mapping[str, RunRecord]], list[str]]
"""Draws a picture per arm, by its label, of one workload."""


_Averages = Mapping[str, "NDArray[np.float64]"]


def _averages(
    steps: Sequence[StepSample], values: Callable[[StepSample], Mapping[str, float]]
) -> _Averages:
    """Return values of the steps of a run, at least one, averaged over equal stretches of time, 0
    where there is none; and the middle of each stretch, in seconds, as ``times``.
    """
    count = min(_MOST_BINS, max(1, len(steps) // _SAMPLES_EACH))
    end = max(each.time + each.seconds for each in steps)
    edges = np.linspace(0, end or 1.0, count + 1)
    middles = [each.time + each.seconds / 2 for each in steps]
    bins = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, count - 1)
    sizes = np.maximum(1, np.bincount(bins, minlength=count))
    rows = [values(each) for each in steps]
    means = {kind: np.bincount(bins, [row[kind] for row in rows], count) for kind in rows[0]}
    return {kind: sums / sizes for kind, sums in means.items()} | {
        "times": (edges[:-1] + edges[1:]) / 2
    }


# ---------------------------------------------------------------------- the batch


def _batches(name: str, records: Mapping[str, RunRecord]) -> list[str]:
    def values(step: StepSample) -> Mapping[str, float]:
        return {
            "running": step.num_running,
            "waiting": step.num_waiting + step.num_swapped,
            "decode": step.decode_tokens,
            "prefill": step.prefill_tokens,
        }

    batches = {label: _averages(record.steps, values) for label, record in records.items()}
    every = batches.values()
    most = (
        max((each["times"][-1] for each in every), default=0.0),
        max((max(each["running"].max(), each["waiting"].max()) for each in every), default=0.0),
        max(((each["decode"] + each["prefill"]).max() for each in every), default=0.0),
    )
    return [
        _batch(f"{name}-{place}", label, batch, most)
        for place, (label, batch) in enumerate(batches.items())
    ]


def _batch(name: str, label: str, batch: _Averages, most: tuple[float, float, float]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, 3.4))
    above, below = figure.subplots(2, 1, sharex=True)
    times, running, waiting = batch["times"], batch["running"], batch["waiting"]
    above.plot(times, running, color=BLUE, label="running")
    above.plot(times, waiting, color=VERMILLION, linestyle=(0, (3, 1.5)), label="waiting")
    below.stackplot(
        *(times, batch["decode"], batch["prefill"]),
        colors=[SKY, BLUE],
        labels=["decode", "prefill"],
        linewidth=0,
    )
    below.plot(times, batch["decode"], color=INK, linewidth=0.6)
    for axes, largest, what in ((above, most[1], "requests"), (below, most[2], "tokens per step")):
        axes.set_ylim(0, 1.05 * largest or 1)
        axes.set_ylabel(what)
        axes.locator_params(axis="y", nbins=4)
        legend_above(axes)
    above.set_xlim(0, most[0] or 1)
    below.set_xlabel("seconds")
    above.set_title(printable(shortened(label)), loc="left", pad=20)
    text = (
        f"{label}: on average {running.mean():.1f} requests run and {waiting.mean():.1f} wait; at"
        f" most {waiting.max():.1f} wait."
    )
    return inline_svg(figure, name, text)


# ---------------------------------------------------------------------- the memory


def _memories(name: str, records: Mapping[str, RunRecord]) -> list[str]:
    filled = {
        label: _averages(record.steps, _shares)
        for label, record in records.items()
        if all(step.block_size for step in record.steps)
    }
    parts = {label: [100 * own[part] for part in _PARTS] for label, own in filled.items()}
    most = max((float(np.sum(own, axis=0).max()) for own in parts.values()), default=0.0)
    return [
        _memory(f"{name}-{place}", label, filled[label]["times"], own, most)
        for place, (label, own) in enumerate(parts.items())
    ]


def _memory(
    name: str, label: str, times: NDArray[Any], parts: Sequence[NDArray[Any]], most: float
) -> str:
    figure, axes = new_axes(2.7)
    axes.stackplot(
        *(times, *parts),
        colors=list(_PARTS.values()),
        labels=list(_PARTS),
        linewidth=0,
    )
    for top in (parts[0], sum(parts[:3])):
        axes.plot(times, top, color=INK, linewidth=0.6)
    axes.set_ylim(0, min(101, 1.1 * most) or 1)
    axes.set_xlim(0, times[-1] or 1)
    axes.set_ylabel("% of slots")
    axes.set_xlabel("seconds")
    axes.set_title(printable(shortened(label)), loc="left", pad=20)
    legend_above(axes)
    means = [f"{part} {own.mean():.0f}%" for part, own in zip(_PARTS, parts, strict=True)]
    return inline_svg(figure, name, f"{label}: on average {'; '.join(means)}.")


def _shares(step: StepSample) -> Mapping[str, float]:
    """Return the share of the cache's slots that each part fills after a step."""
    slots = step.num_blocks * step.block_size
    allocated = (step.num_blocks - step.free_blocks) * step.block_size
    filled = {
        "held": step.held_tokens,
        "reserved": step.reserved_tokens,
        "wasted": max(0, allocated - step.held_tokens - step.reserved_tokens),
        "cached": step.cached_blocks * step.block_size,
    }
    return {part: tokens / slots for part, tokens in filled.items()}


# ---------------------------------------------------------------------- the blocks


def block_map(history: BlockHistory) -> Gallery:
    """Return the picture of a run's blocks: a row per block, a colour per request."""
    return Gallery(
        question="Which request held which block?",
        how_to_read=(
            "A run that was recorded by itself. Colours repeat; dark: several requests share the"
            " block; blank: none holds it. Of a large cache, some blocks are shown."
        ),
        groups=[PictureGroup(pictures=[_blocks(history)] if history.times else [])],
    )


def _blocks(history: BlockHistory) -> str:
    from matplotlib.colors import to_rgba

    num_steps = max(history.times) + 1
    held = owners(history, num_steps)
    colors = np.array([*map(to_rgba, _OWNERS), (0, 0, 0, 0), (0.35, 0.35, 0.35, 1)])
    index = np.where(held >= 0, held % len(_OWNERS), held)  # free and shared come last
    figure, axes = new_axes(3.4)
    axes.imshow(
        (255 * colors[index]).astype(np.uint8),
        aspect="auto",
        interpolation="none",
        extent=(0, num_steps, history.num_blocks, 0),
    )
    axes.grid(visible=False)
    axes.set_xlabel("step")
    axes.set_ylabel("block")
    axes.set_title("Blocks by request", loc="left")
    text = (
        f"{history.num_blocks:,} blocks over {num_steps:,} steps, held by"
        f" {len(history.requests):,} requests; {(held != FREE).mean():.0%} held on average,"
        f" {(held == SHARED).mean():.0%} by several."
    )
    return inline_svg(figure, "blocks", text)


def owners(history: BlockHistory, num_steps: int) -> NDArray[Any]:
    """Return the number of the request that holds each block in each step, thinned out evenly."""
    blocks = range(0, history.num_blocks, -(-history.num_blocks // _MOST_ROWS))
    columns = min(num_steps, _MOST_COLUMNS)
    numbers = {request: number for number, request in enumerate(history.requests)}
    held = np.full((len(blocks), columns), FREE)
    for row, block in enumerate(blocks):
        for span in history.of_block(block):
            end = num_steps if span.end is None else span.end
            first, last = span.start * columns // num_steps, end * columns // num_steps
            cells = held[row, first : max(last, first + 1)]
            number = numbers[span.request]
            cells[:] = np.where((cells == FREE) | (cells == number), number, SHARED)
    return held
