"""How pictures are drawn: their style, their legends, and small SVG elements for a page."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
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


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_SCALE = re.compile("scale|matrix")
_FONT = re.compile("font-family: [^;]*; ")
_DROPPED = ("metadata", "style")


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the style of the report, inside; SettingsError if matplotlib is not installed."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise SettingsError(
            "the plots of a report need matplotlib, which is not installed;"
            " `pip install 'paged-core[lab]'`"
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
        name: a prefix of its ids, unique in the page.
        label: what it shows, for screen readers; empty: it is mere decoration.
    """
    file = BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    root = Xml.fromstring(file.getvalue())
    _without_namespaces(root)
    _without_extras(root)
    _rename(root, name)
    view = root.get("viewBox")
    assert view is not None
    accessible = {"role": "img", "aria-label": label} if label else {"aria-hidden": "true"}
    root.attrib.clear()
    root.attrib.update({"viewBox": view, **accessible})
    return _in_the_colours_of_the_page(Xml.tostring(root, encoding="unicode"))


def _without_namespaces(root: Xml.Element) -> None:
    """Drop namespaces: the parser of HTML knows them."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in [key for key in element.attrib if key.startswith("{")]:
            element.set(key.rpartition("}")[2], element.attrib.pop(key))


def _without_extras(root: Xml.Element) -> None:
    """Drop what shows nothing, and round numbers to tenths of a point."""
    for parent in root.iter():
        for child in [child for child in parent if _shows_nothing(child)]:
            parent.remove(child)
        if "style" in parent.attrib:  # the page has its own fonts
            parent.set("style", _FONT.sub("", parent.attrib["style"]))
        if parent.get("transform", "").startswith("rotate(-0 "):
            del parent.attrib["transform"]
        if parent.tag != "text":
            parent.text = (parent.text or "").strip() or None
        parent.tail = None
        for key in ("d", "x", "y", "width", "height", "transform", "points"):
            if key in parent.attrib and not _SCALE.search(parent.attrib[key]):
                text = " ".join(parent.attrib[key].split())
                parent.set(key, _NUMBER.sub(lambda found: f"{float(found[0]):.1f}", text))


def _shows_nothing(element: Xml.Element) -> bool:
    return element.tag in _DROPPED or element.get("style") == "fill: none"


def _rename(root: Xml.Element, name: str) -> None:
    """Keep the ids that are referred to, and make them unique in the page."""
    texts = [value for element in root.iter() for value in element.attrib.values()]
    used = {found for text in texts for found in _REFERENCE.findall(text)}
    links = (element.get("href", "") for element in root.iter())
    used |= {link[1:] for link in links if link.startswith("#")}
    new = {old: f"{name}-{number}" for number, old in enumerate(sorted(used))}
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id":
                if value in new:
                    element.set("id", new[value])
                else:
                    del element.attrib["id"]
            elif key == "href" and value.startswith("#"):
                element.set(key, f"#{new[value[1:]]}")
            elif "url(#" in value:
                element.set(key, _REFERENCE.sub(lambda found: f"url(#{new[found[1]]})", value))


def _in_the_colours_of_the_page(svg: str) -> str:
    for color, css in ((INK, "currentColor"), (FAINT, "var(--rule)"), (PAPER, "var(--paper)")):
        svg = svg.replace(color, css)
    return svg


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One drawing."""

    title: str
    description: str
    """What it shows, for those who cannot see it."""
    svg: str
    """An ``<svg>`` element to be put into a page, safe as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendEntry:
    """A line or mark, and what it stands for."""

    label: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureGroup:
    """Pictures that share a legend: of one workload, say."""

    title: str
    legend: Sequence[LegendEntry]
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """The groups that answer a question."""

    question: str
    how_to_read: str
    groups: Sequence[PictureGroup]
    num_left_out: int = 0
    """What was not drawn, to keep the file small."""

    def __bool__(self) -> bool:
        """Whether there is anything to see."""
        return any(group.pictures for group in self.groups)


def legend(
    name: str, labels: Sequence[str], *, lines: bool = True, colored: bool = True
) -> list[LegendEntry]:
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
        entries.append(LegendEntry(label=label, svg=inline_svg(figure, f"{name}-{number}", "")))
    return entries


def legend_above(axes: Any) -> None:
    """Put a legend of one line above the axes."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 0.97),
        ncols=4,
        frameon=False,
        borderaxespad=0,
        handlelength=1.4,
        columnspacing=1.2,
        handletextpad=0.5,
        fontsize=9.5,
    )


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
