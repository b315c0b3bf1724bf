"""Pictures of runs over time: the batch, the memory, and who held which block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_plugins.block_history import BlockHistory
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
    inline_svg,
    legend_above,
    printable,
    shortened,
)
from paged_plugins.lab.runs.run_record import RunRecord, StepSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 120
_SAMPLES_EACH = 4


class Binned:
    """The steps of a run, by stretches of time."""

    def __init__(self, steps: Sequence[StepSample]) -> None:
        """Sort steps, at least one, into stretches."""
        count = min(_MOST, max(1, len(steps) // _SAMPLES_EACH))
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


QUESTION = "What did the batch look like?"
HOW_TO_READ = (
    "The first seed. Above: requests that run, and that wait. Below: the tokens that a step"
    " computes, those of prefills on top of those of decodes. Averages over short stretches of"
    " time; all arms of a workload have the same scales."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The batch of one arm over time."""

    times: NDArray[Any]
    running: NDArray[Any]
    waiting: NDArray[Any]
    decode: NDArray[Any]
    prefill: NDArray[Any]

    @staticmethod
    def of(steps: Sequence[StepSample]) -> _Batch:
        """Average steps over stretches of time."""
        binned = Binned(steps)
        return _Batch(
            times=binned.times,
            running=binned.mean(lambda step: step.num_running),
            waiting=binned.mean(lambda step: step.num_waiting + step.num_swapped),
            decode=binned.mean(lambda step: step.decode_tokens),
            prefill=binned.mean(lambda step: step.prefill_tokens),
        )


def batch_timelines(name: str, title: str, records: Mapping[str, RunRecord]) -> PictureGroup:
    """Return a picture per arm, by its label, of one workload."""
    batches = {label: _Batch.of(record.steps) for label, record in records.items() if record.steps}
    every = batches.values()
    most = (
        max((each.times[-1] for each in every), default=0.0),
        max((max(each.running.max(), each.waiting.max()) for each in every), default=0.0),
        max(((each.decode + each.prefill).max() for each in every), default=0.0),
    )
    pictures = [
        _picture(f"{name}-{place}", label, batch, most)
        for place, (label, batch) in enumerate(batches.items())
    ]
    return PictureGroup(title=title, legend=[], pictures=pictures)


def _picture(name: str, label: str, batch: _Batch, most: tuple[float, float, float]) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, 3.4))
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(batch.times, batch.running, color=BLUE, label="running")
    above.plot(
        batch.times, batch.waiting, color=VERMILLION, linestyle=(0, (3, 1.5)), label="waiting"
    )
    below.stackplot(
        batch.times,
        batch.decode,
        batch.prefill,
        colors=[SKY, BLUE],
        labels=["decode", "prefill"],
        linewidth=0,
    )
    below.plot(batch.times, batch.decode, color=INK, linewidth=0.6)
    for axes, largest, what in ((above, most[1], "requests"), (below, most[2], "tokens per step")):
        axes.set_ylim(0, 1.05 * largest or 1)
        axes.set_ylabel(what)
        axes.locator_params(axis="y", nbins=4)
        legend_above(axes)
    above.set_xlim(0, most[0] or 1)
    below.set_xlabel("seconds")
    above.set_title(printable(shortened(label)), loc="left", pad=20)
    text = (
        f"{label}: on average {batch.running.mean():.1f} requests run and"
        f" {batch.waiting.mean():.1f} wait; at most {batch.waiting.max():.1f} wait."
    )
    return Picture(title=label, description=text, svg=inline_svg(figure, name, text))


MEMORY_QUESTION = "What filled the memory?"
MEMORY_HOW_TO_READ = (
    "The first seed; shares of the cache's slots. Held: the state of a token. Reserved: allocated,"
    " and will hold one. Wasted: allocated, and never will (internal fragmentation). Cached: free,"
    " but still found as a prefix. The rest is free and empty."
)

_PARTS = (
    ("held", BLUE),
    ("reserved", ORANGE),
    ("wasted", VERMILLION),
    ("cached", SKY),
)


def memory_timelines(name: str, title: str, records: Mapping[str, RunRecord]) -> PictureGroup:
    """Return a picture per arm, by its label, of one workload."""
    filled = {
        label: _filled(record.steps)
        for label, record in records.items()
        if record.steps and all(step.block_size for step in record.steps)
    }
    most = max((float(np.sum(parts, axis=0).max()) for _, parts in filled.values()), default=0.0)
    pictures = [
        _memory_picture(f"{name}-{place}", label, times, parts, most)
        for place, (label, (times, parts)) in enumerate(filled.items())
    ]
    return PictureGroup(title=title, legend=[], pictures=pictures)


def _filled(steps: Sequence[StepSample]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Return times, and the percentage of slots that each part fills at them."""
    binned = Binned(steps)
    return binned.times, [100 * binned.mean(partial(_share, part)) for part, _ in _PARTS]


def _memory_picture(
    name: str, label: str, times: NDArray[Any], parts: Sequence[NDArray[Any]], most: float
) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, 2.7))
    axes = figure.add_subplot()
    axes.stackplot(
        times,
        *parts,
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
    means = "; ".join(
        f"{part} {values.mean():.0f}%" for (part, _), values in zip(_PARTS, parts, strict=True)
    )
    text = f"{label}: on average {means}."
    return Picture(title=label, description=text, svg=inline_svg(figure, name, text))


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


_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
SHARED, FREE = -1, -2
"""Instead of the number of a request."""
_MOST_ROWS, _MOST_COLUMNS = 256, 640


def block_map(history: BlockHistory) -> Gallery:
    """Return the picture of a run's blocks."""
    picture = [_block_picture(history)] if history.times else []
    return Gallery(
        question="Which request held which block?",
        how_to_read=(
            "A run that was recorded by itself. Colours repeat; dark: several requests share the"
            " block; blank: none holds it. Of a large cache, some blocks are shown."
        ),
        groups=[PictureGroup(title="", legend=[], pictures=picture)],
    )


def _block_picture(history: BlockHistory) -> Picture:
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure

    num_steps = max(history.times) + 1
    held = owners(history, num_steps)
    colors = np.array([*map(to_rgba, _COLORS), (0, 0, 0, 0), (0.35, 0.35, 0.35, 1)])
    index = np.where(held >= 0, held % len(_COLORS), held)  # free and shared come last
    figure = Figure(figsize=(WIDTH / 72, 3.4))
    axes = figure.add_subplot()
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
    return Picture(title=title, description=text, svg=inline_svg(figure, "blocks", text))


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
