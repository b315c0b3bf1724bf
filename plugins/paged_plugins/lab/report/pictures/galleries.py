"""All pictures of a report, in the order of their questions."""

from __future__ import annotations

from collections.abc import Iterable

from paged_plugins.lab.report.contents import Contents
from paged_plugins.lab.report.pictures import batch_timeline, distributions, memory_timeline
from paged_plugins.lab.report.pictures.forest import forest
from paged_plugins.lab.report.pictures.load import load
from paged_plugins.lab.report.pictures.observed import Observed, observe
from paged_plugins.lab.report.pictures.picture import Gallery, PictureGroup
from paged_plugins.lab.report.pictures.svg import drawing
from paged_plugins.lab.results import Results

_MOST_PICTURES = 48
"""Of one question: the file stays small."""


def galleries(results: Results, contents: Contents) -> list[Gallery]:
    """Return the pictures that ``results`` have the data for; SettingsError without matplotlib."""
    with drawing():
        made = [
            forest(results, contents.found),
            load(results, contents.families),
            *_of_records(results, contents),
        ]
    return [gallery for gallery in map(_bounded, made) if gallery.groups]


def _of_records(results: Results, contents: Contents) -> list[Gallery]:
    """Return what is drawn from the records of runs; each is read once."""
    spread, batches, memory = [], [], []
    single = len(results.workloads) == 1
    for place, workload in enumerate(results.workloads):
        observed: dict[str, Observed] = {}
        for arm in results.arms:
            one = observe(results, arm.label, workload)
            if one is not None:
                observed[arm.label] = one
        if not observed:
            continue
        title = "" if single else workload
        for number, family in enumerate(contents.families):
            spread.append(
                distributions.distributions(
                    f"spread-{place}-{number}",
                    " · ".join(filter(None, (title, family.title))),
                    family,
                    observed,
                    results.slo,
                )
            )
        batches.append(batch_timeline.batch_timelines(f"batch-{place}", title, observed))
        memory.append(memory_timeline.memory_timelines(f"memory-{place}", title, observed))
    return [
        Gallery(
            question=distributions.QUESTION, how_to_read=distributions.HOW_TO_READ, groups=spread
        ),
        Gallery(
            question=batch_timeline.QUESTION, how_to_read=batch_timeline.HOW_TO_READ, groups=batches
        ),
        Gallery(
            question=memory_timeline.QUESTION,
            how_to_read=memory_timeline.HOW_TO_READ,
            groups=memory,
        ),
    ]


def _bounded(gallery: Gallery) -> Gallery:
    """Return a gallery with the first pictures only, if there are too many."""
    kept: list[PictureGroup] = []
    left = _MOST_PICTURES
    for group in gallery.groups:
        pictures = group.pictures[:left]
        left -= len(pictures)
        if pictures:
            kept.append(PictureGroup(title=group.title, legend=group.legend, pictures=pictures))
    return Gallery(
        question=gallery.question,
        how_to_read=gallery.how_to_read,
        groups=kept,
        num_left_out=_count(gallery.groups) - _count(kept),
    )


def _count(groups: Iterable[PictureGroup]) -> int:
    return sum(len(group.pictures) for group in groups)
