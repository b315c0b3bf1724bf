"""From a figure of matplotlib to an SVG element for a page: small, and equal for equal data."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from paged_core.errors import SettingsError
from paged_plugins.lab.report.pictures.style import FAINT, INK, PAPER, RC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
