"""Who held which block: a row per block, a colour per request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paged_plugins.block_history import BlockHistory
from paged_plugins.lab.report.pictures.picture import Gallery, Picture, PictureGroup
from paged_plugins.lab.report.pictures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    WIDTH,
)
from paged_plugins.lab.report.pictures.svg import inline_svg

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
SHARED, FREE = -1, -2
"""Instead of the number of a request."""
_MOST_ROWS, _MOST_COLUMNS = 256, 640


def block_map(history: BlockHistory) -> Gallery:
    """Return the picture of a run's blocks."""
    picture = [_picture(history)] if history.times else []
    return Gallery(
        question="Which request held which block?",
        how_to_read=(
            "A run that was recorded by itself. Colours repeat; dark: several requests share the"
            " block; blank: none holds it. Of a large cache, some blocks are shown."
        ),
        groups=[PictureGroup(title="", legend=[], pictures=picture)],
    )


def _picture(history: BlockHistory) -> Picture:
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
