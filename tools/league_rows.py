"""Hook of mkdocs: the page of a slot shows its rows of the league, as docs/league.html has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paged_core.plugins.registry import Registry

_DIVISION = re.compile(
    r'<h2 id="(?P<slot>\w+)">(?P<title>.*?)</h2>\n<p class="how">(?P<how>.*?)</p>.*?'
    r'<table class="sort">(?P<table>.*?)</table>',
    re.DOTALL,
)
_CELL = re.compile(
    r"<t[dh](?P<about>[^>]*)>(?P<text>.*?)\s*(?=<t[dhr]|</?t(?:head|body)|$)", re.DOTALL
)
_REGISTRY = Registry.discover()


def league_rows(league: str, slot: str) -> Iterator[str]:
    """Yield, for each division in which components of a slot play, a title and a table.

    Args:
        league: the page of the league.
    """
    for found in _DIVISION.finditer(league):
        head, default, *others = (_cells(row) for row in found["table"].split("<tr>")[1:])
        if found["slot"] != slot:  # it may still be paired with components of that one
            names = {f" + {name}" for name in _REGISTRY.of(slot)}
            others = [row for row in others if row[0].endswith(tuple(names))]
        if others:
            rows = (head, ["---"] * len(head), default, *others)
            table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
            how = " ".join(found["how"].split())
            yield f"**[{found['title']}](../league.html#{found['slot']})**: {how}\n\n{table}"


def _cells(row: str) -> Sequence[str]:
    """Return the cells of a row, those that are better or worse in bold."""
    cells = (each.group("about", "text") for each in _CELL.finditer(row))
    return [f"**{text}**" if re.search("better|worse", about) else text for about, text in cells]


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Append them."""
    place = Path(page.file.src_uri)
    if place.parent.name != "interfaces" or place.stem not in _REGISTRY.slots:
        return markdown
    league = Path(config.docs_dir, "league.html").read_text("utf-8")
    tables = list(league_rows(league, place.stem))
    return "\n".join([markdown, "## In the league\n", *tables]) if tables else markdown
