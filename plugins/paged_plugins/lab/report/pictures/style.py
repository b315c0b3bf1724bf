"""How lines and marks look: told apart without colour, and with any colour vision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INK = "#010203"
"""Stands for the colour of the page's text, which replaces it in the SVG."""
FAINT = "#040506"
"""Stands for the colour of the page's rules."""
PAPER = "#070809"
"""Stands for the background of the page."""
BLUE, VERMILLION, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, ORANGE, SKY = "#cc79a7", "#e69f00", "#56b4e9"
"""The palette of Okabe and Ito (Color Universal Design, 2008), the strongest contrasts first."""

WIDTH = 340.0
"""Width of a picture in points: about what a phone shows at once."""

RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paged_core",
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, slots=True)
class Style:
    """The look of one series: colour, dashes and marker all differ."""

    color: str
    dashes: Any
    marker: str


STYLES: Sequence[Style] = (
    Style(INK, "-", "o"),
    Style(BLUE, (0, (5, 1.5)), "s"),
    Style(VERMILLION, (0, (1.2, 1.2)), "^"),
    Style(GREEN, (0, (6, 1.5, 1.2, 1.5)), "D"),
    Style(PURPLE, (0, (9, 2.5)), "v"),
    Style(ORANGE, (0, (4, 1.2, 1.2, 1.2, 1.2, 1.2)), "P"),
    Style(SKY, (0, (2.5, 1)), "X"),
)
"""The first is for the arm that the others are compared with."""


def shortened(label: str, longest: int = 40) -> str:
    """Return a label that fits into a picture: its middle is left out if it is long."""
    label = " ".join(label.split())
    if len(label) <= longest:
        return label
    tail = longest // 2
    return f"{label[: longest - tail - 1]}…{label[-tail:]}"


def wrapped(label: str, width: int = 20) -> str:
    """Return a label in at most two lines, broken after a space or ``=`` where it has one, else
    after a part of a name.
    """
    label = shortened(label, 2 * width)
    if len(label) <= width:
        return label
    breaks = [
        place
        for ends in (" =,", ".", "_-")
        for place in range(width, 4, -1)
        if label[place - 1] in ends
    ]
    place = next((each for each in breaks if len(label) - each <= width), width)
    return f"{label[:place].rstrip()}\n{label[place:]}"
