"""What filled the memory over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from paged_plugins.lab.report.pictures.binned import Binned
from paged_plugins.lab.report.pictures.legend import legend_above
from paged_plugins.lab.report.pictures.picture import Picture, PictureGroup
from paged_plugins.lab.report.pictures.style import (
    BLUE,
    INK,
    ORANGE,
    SKY,
    VERMILLION,
    WIDTH,
    shortened,
)
from paged_plugins.lab.report.pictures.svg import inline_svg, printable
from paged_plugins.lab.runs.run_record import RunRecord, StepSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUESTION = "What filled the memory?"
HOW_TO_READ = (
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
        _picture(f"{name}-{place}", label, times, parts, most)
        for place, (label, (times, parts)) in enumerate(filled.items())
    ]
    return PictureGroup(title=title, legend=[], pictures=pictures)


def _filled(steps: Sequence[StepSample]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Return times, and the percentage of slots that each part fills at them."""
    binned = Binned(steps)
    return binned.times, [100 * binned.mean(partial(_share, part)) for part, _ in _PARTS]


def _picture(
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
