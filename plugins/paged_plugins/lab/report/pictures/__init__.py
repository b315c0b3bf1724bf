"""The pictures of a report, in the order of the questions that they answer."""

from __future__ import annotations

from dataclasses import replace

from paged_plugins.block_history import BlockHistory
from paged_plugins.lab.report.contents import Contents
from paged_plugins.lab.report.pictures.drawing import Gallery, drawing
from paged_plugins.lab.report.pictures.forest import forest
from paged_plugins.lab.report.pictures.latencies import distributions, load
from paged_plugins.lab.report.pictures.timelines import block_map, timelines
from paged_plugins.lab.results.results import Results

_MOST_PICTURES = 15
"""Pictures of one question, at most: the file stays small."""
_MOST_GROUPS = _MOST_PICTURES // 3


def galleries(results: Results, contents: Contents, blocks: BlockHistory | None) -> list[Gallery]:
    """Return the pictures that ``results`` have the data for, without arms that failed;
    SettingsError without matplotlib.
    """
    failures, record = results.failures, results.record
    results = replace(
        results,
        runs=[run for run in results.runs if run.arm not in failures],
        record=lambda *place: None if place[0] in failures else record(*place),
    )
    with drawing():
        made = [
            forest(results, contents.found, _MOST_PICTURES),
            load(results, contents.families, _MOST_GROUPS),
            distributions(results, contents.families, _MOST_GROUPS),
            *timelines(results, contents.found, _MOST_PICTURES),
            *([] if blocks is None else [block_map(blocks)]),
        ]
    return [gallery for gallery in made if gallery]
