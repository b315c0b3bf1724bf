"""The pictures of a report, in the order of the questions that they answer."""

from __future__ import annotations

from paged_plugins.block_history import BlockHistory
from paged_plugins.lab.report.contents import Contents
from paged_plugins.lab.report.pictures.drawing import Gallery, drawing
from paged_plugins.lab.report.pictures.forest import forest
from paged_plugins.lab.report.pictures.latencies import distributions, load
from paged_plugins.lab.report.pictures.timelines import block_map, timelines
from paged_plugins.lab.results.results import Results

_MOST_PICTURES = 15
"""Of one question: the file stays small."""
_MOST_GROUPS = _MOST_PICTURES // 3


def galleries(results: Results, contents: Contents, blocks: BlockHistory | None) -> list[Gallery]:
    """Return the pictures that ``results`` have the data for; SettingsError without matplotlib."""
    with drawing():
        made = [
            forest(results, contents.found, _MOST_PICTURES),
            load(results, contents.families, _MOST_GROUPS),
            distributions(results, contents.families, _MOST_GROUPS),
            *timelines(results, contents.found, _MOST_PICTURES),
            *([] if blocks is None else [block_map(blocks)]),
        ]
    return [gallery for gallery in made if gallery]
