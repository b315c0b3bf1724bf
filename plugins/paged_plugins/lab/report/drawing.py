"""The style of pictures, their legends, and small SVG elements for a page."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml

import numpy as np

from paged_core.errors import SettingsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_REFERENCE = re.compile(rb"#([\w.-]+)")
_FONT = re.compile("font-family: [^;]*; ")
_DROPPED = ("metadata", "style")


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the style of the report, inside; SettingsError if matplotlib is not installed."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise SettingsError(
            "the plots of a report need matplotlib, which is not installed: `pip install "
            "'paged-core[lab]'`; without plots, `paged-core lab report --markdown FILE`"
        ) from None
    with rc_context(RC), warnings.catch_warnings():
        # Labels may have letters that matplotlib's font lacks: the browser chooses another font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def printable(text: str) -> str:
    """Return text that XML can hold: control characters become U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)


def inline_svg(figure: Figure, name: str, label: str) -> str:
    """Return the ``<svg>`` element of a figure, under :func:`drawing`.

    Args:
        name: unique in the page; its ids depend on it.
        label: what it shows, for screen readers; empty: it is mere decoration.
    """
    from matplotlib import rc_context

    file = BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    written = file.getvalue()
    root = Xml.fromstring(written)
    _simplify(root, {found.decode() for found in _REFERENCE.findall(written)})
    accessible = {"role": "img", "aria-label": label} if label else {"aria-hidden": "true"}
    root.attrib = {"viewBox": root.attrib["viewBox"], **accessible}
    svg = Xml.tostring(root, encoding="unicode")
    for color, css in ((INK, "currentColor"), (FAINT, "var(--rule)"), (PAPER, "var(--paper)")):
        svg = svg.replace(color, css)
    return svg


def _simplify(element: Xml.Element, referred: Collection[str]) -> None:
    """Drop what shows nothing: namespaces, which the parser of HTML knows, ids that nothing refers
    to, and fonts, as the page has its own.
    """
    for child in list(element):
        if child.tag.endswith(_DROPPED) or child.get("style") == "fill: none":
            element.remove(child)
        else:
            _simplify(child, referred)
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    element.attrib = {
        key: _FONT.sub("", value)
        for key, value in attributes.items()
        if not value.startswith("rotate(-0 ") and (key != "id" or value in referred)
    }
    element.tag = element.tag.rpartition("}")[2]
    element.tail = None
    if element.tag != "text":
        element.text = (element.text or "").strip() or None


Legend = Sequence[tuple[str, str]]
"""Labels, each with the ``<svg>`` element of the line or mark that stands for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureGroup:
    """Pictures that share a legend: of one workload, say."""

    title: str = ""
    legend: Legend = ()
    pictures: Sequence[str]
    """``<svg>`` elements to be put into a page, safe as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """The groups that answer a question."""

    question: str
    how_to_read: str
    groups: Sequence[PictureGroup]
    num_left_out: int = 0
    """Rows that were not drawn, to keep the file small."""

    def __bool__(self) -> bool:
        """Return whether there is anything to see."""
        return any(group.pictures for group in self.groups)


def new_axes(height: float) -> tuple[Figure, Any]:
    """Return a figure of so many inches in height, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height))
    return figure, figure.add_subplot()


def legend(name: str, labels: Sequence[str], *, lines: bool = True, colored: bool = True) -> Legend:
    """Return the legend of series in the styles of :data:`STYLES`, in their order.

    Args:
        lines: show dashes beside the marker.
        colored: the colour tells series apart too, and means nothing else.
    """
    from matplotlib.figure import Figure

    entries = []
    for number, (label, style) in enumerate(zip(labels, STYLES, strict=False)):
        figure = Figure(figsize=(0.5 if lines else 0.2, 0.2))
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, 2)
        axes.set_ylim(-1, 1)
        color = style.color if colored else INK
        if lines:
            axes.plot([0, 2], [0, 0], color=color, linestyle=style.dashes)
        axes.plot([1], [0], color=color, marker=style.marker, linestyle="none")
        entries.append((label, inline_svg(figure, f"{name}-{number}", "")))
    return entries


def milliseconds(axes: Any, which: str = "x") -> None:
    """Label an axis of milliseconds, logarithmic where it spans more than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = (axes.dataLim.intervalx if which == "x" else axes.dataLim.intervaly).tolist()
    if low > 0 and high / low > 10:
        axes.set(**{f"{which}scale": "log"})
        decades = np.log10(high / low)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
        axis.set_minor_formatter(NullFormatter())
    else:
        axes.locator_params(axis=which, nbins=5)
    axis.set_major_formatter(FuncFormatter(_time))
    axes.set(**{f"{which}label": "log scale" if axis.get_scale() == "log" else ""})


def _time(value: float, _: Any) -> str:
    return f"{value / 1e3:,g} s" if value >= 1e3 else f"{value:g} ms"
