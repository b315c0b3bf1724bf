"""Pictures of runs over time: the batch, the memory, and who held which block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    Picture,
    PictureGroup,
    legend_above,
    new_axes,
    picture,
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
_PARTS = (("held", BLUE), ("reserved", ORANGE), ("wasted", VERMILLION), ("cached", SKY))
_OWNERS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
SHARED, FREE = -1, -2
"""Instead of the number of a request that owns a block."""
_MOST_ROWS, _MOST_COLUMNS = 256, 640


def timelines(results: Results, found: Found, most: int) -> list[Gallery]:
    """Return pictures of the batch and of the memory, for arms that differ from their base.

    Args:
        most: pictures of each kind to draw.
    """
    places = [
        (workload, arm.label)
        for workload, arm in product(results.workloads, results.arms)
        if not _is_equal(found, workload, arm.label)
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
                    legend=[],
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


_Draw = Callable[[str, Mapping[str, RunRecord]], list[Picture]]
"""Draws a picture per arm, by its label, of one workload."""


def _is_equal(found: Found, workload: str, arm: str) -> bool:
    """Whether an arm equals the one that it is compared with, in every measure and seed."""
    own = [each for place, each in found.items() if place[:2] == (arm, workload)]
    return bool(own) and all(each.is_equal for each in own)


class _Binned:
    """Steps of a run, at least one, averaged over equal stretches of time."""

    def __init__(self, steps: Sequence[StepSample]) -> None:
        count = min(_MOST_BINS, max(1, len(steps) // _SAMPLES_EACH))
        end = max(each.time + each.seconds for each in steps)
        edges = np.linspace(0, end or 1.0, count + 1)
        self.times: NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2
        """The middle of each, in seconds."""
        self._steps = steps
        middles = [each.time + each.seconds / 2 for each in steps]
        self._bins = np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, count - 1)

    def mean(self, value: Callable[[StepSample], float]) -> NDArray[np.float64]:
        """Return the mean of a value over the steps of each stretch; 0 where there is none."""
        count = len(self.times)
        sums = np.bincount(self._bins, [value(each) for each in self._steps], count)
        means: NDArray[np.float64] = sums / np.maximum(1, np.bincount(self._bins, minlength=count))
        return means


# ---------------------------------------------------------------------- the batch


def _batches(name: str, records: Mapping[str, RunRecord]) -> list[Picture]:
    values: Mapping[str, Callable[[StepSample], float]] = {
        "running": lambda step: step.num_running,
        "waiting": lambda step: step.num_waiting + step.num_swapped,
        "decode": lambda step: step.decode_tokens,
        "prefill": lambda step: step.prefill_tokens,
    }
    batches = {}
    for label, record in records.items():
        binned = _Binned(record.steps)
        means = {kind: binned.mean(value) for kind, value in values.items()}
        batches[label] = {"times": binned.times, **means}
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


def _batch(
    name: str, label: str, batch: Mapping[str, NDArray[Any]], most: tuple[float, float, float]
) -> Picture:
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
    return picture(figure, name, label, text)


# ---------------------------------------------------------------------- the memory


def _memories(name: str, records: Mapping[str, RunRecord]) -> list[Picture]:
    filled = {}
    for label, record in records.items():
        if all(step.block_size for step in record.steps):
            binned = _Binned(record.steps)
            parts = [100 * binned.mean(partial(_share, part)) for part, _ in _PARTS]
            filled[label] = binned.times, parts
    most = max((float(np.sum(parts, axis=0).max()) for _, parts in filled.values()), default=0.0)
    return [
        _memory(f"{name}-{place}", label, times, parts, most)
        for place, (label, (times, parts)) in enumerate(filled.items())
    ]


def _memory(
    name: str, label: str, times: NDArray[Any], parts: Sequence[NDArray[Any]], most: float
) -> Picture:
    figure, axes = new_axes(2.7)
    axes.stackplot(
        *(times, *parts),
        colors=[color for _, color in _PARTS],
        labels=[part for part, _ in _PARTS],
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
    means = [f"{part} {own.mean():.0f}%" for (part, _), own in zip(_PARTS, parts, strict=True)]
    return picture(figure, name, label, f"{label}: on average {'; '.join(means)}.")


def _share(part: str, step: StepSample) -> float:
    """Return the share of the cache's slots that a part fills after a step."""
    slots = step.num_blocks * step.block_size
    allocated = (step.num_blocks - step.free_blocks) * step.block_size
    filled = {
        "held": step.held_tokens,
        "reserved": step.reserved_tokens,
        "wasted": max(0, allocated - step.held_tokens - step.reserved_tokens),
        "cached": step.cached_blocks * step.block_size,
    }
    return filled[part] / slots


# ---------------------------------------------------------------------- the blocks


def block_map(history: BlockHistory) -> Gallery:
    """Return the picture of a run's blocks: a row per block, a colour per request."""
    return Gallery(
        question="Which request held which block?",
        how_to_read=(
            "A run that was recorded by itself. Colours repeat; dark: several requests share the"
            " block; blank: none holds it. Of a large cache, some blocks are shown."
        ),
        groups=[
            PictureGroup(title="", legend=[], pictures=[_blocks(history)] if history.times else [])
        ],
    )


def _blocks(history: BlockHistory) -> Picture:
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
    title = "Blocks by request"
    axes.set_title(title, loc="left")
    text = (
        f"{history.num_blocks:,} blocks over {num_steps:,} steps, held by"
        f" {len(history.requests):,} requests; {(held != FREE).mean():.0%} held on average,"
        f" {(held == SHARED).mean():.0%} by several."
    )
    return picture(figure, "blocks", title, text)


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
