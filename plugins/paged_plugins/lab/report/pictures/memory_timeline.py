"""What filled the memory over time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from paged_plugins.lab.report.pictures.batch_timeline import legend_above
from paged_plugins.lab.report.pictures.binned import Binned
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
from paged_plugins.lab.run_record import RunRecord, StepSample

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
    pictures = [
        _picture(f"{name}-{place}", label, record)
        for place, (label, record) in enumerate(records.items())
        if record.steps and all(step.block_size for step in record.steps)
    ]
    return PictureGroup(title=title, legend=[], pictures=pictures)


def _picture(name: str, label: str, record: RunRecord) -> Picture:
    from matplotlib.figure import Figure

    binned = Binned(record.steps)
    parts = [100 * binned.mean(partial(_share, part)) for part, _ in _PARTS]
    figure = Figure(figsize=(WIDTH / 72, 2.7))
    axes = figure.add_subplot()
    axes.stackplot(
        binned.times,
        *parts,
        colors=[color for _, color in _PARTS],
        labels=[part for part, _ in _PARTS],
        linewidth=0,
    )
    for top in (parts[0], sum(parts[:3])):
        axes.plot(binned.times, top, color=INK, linewidth=0.6)
    axes.set_ylim(0, 101)
    axes.set_xlim(0, binned.times[-1] or 1)
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
