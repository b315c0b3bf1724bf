"""All pictures of a report, in the order of their questions."""

from __future__ import annotations

from itertools import product

from paged_plugins.block_history import BlockHistory
from paged_plugins.lab.report.contents import Contents, group_title
from paged_plugins.lab.report.pictures import latencies as of_latencies
from paged_plugins.lab.report.pictures import timelines
from paged_plugins.lab.report.pictures.drawing import Gallery, drawing
from paged_plugins.lab.report.pictures.forest import forest
from paged_plugins.lab.report.pictures.latencies import latencies, load
from paged_plugins.lab.report.pictures.timelines import block_map
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.runs.run_record import RunRecord

_MOST_PICTURES = 15
"""Of one question: the file stays small."""
_MOST_GROUPS = _MOST_PICTURES // 3

_EQUAL = "Arms that equal the one that they are compared with are not drawn."


def galleries(results: Results, contents: Contents, blocks: BlockHistory | None) -> list[Gallery]:
    """Return the pictures that ``results`` have the data for; SettingsError without matplotlib."""
    with drawing():
        made = [
            forest(results, contents.found, _MOST_PICTURES),
            load(results, contents.families, _MOST_GROUPS),
            _distributions(results, contents),
            *_timelines(results, contents),
            *([] if blocks is None else [block_map(blocks)]),
        ]
    return [gallery for gallery in made if gallery]


def _distributions(results: Results, contents: Contents) -> Gallery:
    places = list(product(results.workloads, contents.families))
    groups = []
    for place, (workload, family) in enumerate(places[:_MOST_GROUPS]):
        found = {label: latencies(results, label, workload) for label in family.labels}
        title = group_title(results, workload, family)
        groups.append(
            of_latencies.distributions(f"spread-{place}", title, family, found, results.slo)
        )
    return Gallery(
        question=of_latencies.QUESTION,
        how_to_read=of_latencies.HOW_TO_READ,
        groups=groups,
        num_left_out=len(places) - len(groups),
    )


def _timelines(results: Results, contents: Contents) -> list[Gallery]:
    arms = [arm.label for arm in results.arms]
    equal = {place for place in product(results.workloads, arms) if _is_equal(contents, *place)}
    places = [place for place in product(results.workloads, arms) if place not in equal]
    drawn: dict[str, dict[str, RunRecord]] = {workload: {} for workload in results.workloads}
    for workload, arm in places[:_MOST_PICTURES]:
        record = _first_record(results, arm, workload)
        if record is not None:
            drawn[workload][arm] = record
    groups = [
        (f"{place}", group_title(results, workload), drawn[workload])
        for place, workload in enumerate(results.workloads)
    ]
    return [
        Gallery(
            question=timelines.QUESTION,
            how_to_read=f"{timelines.HOW_TO_READ} {_EQUAL}",
            groups=[
                timelines.batch_timelines(f"batch-{place}", title, records)
                for place, title, records in groups
            ],
            num_left_out=max(0, len(places) - _MOST_PICTURES),
        ),
        Gallery(
            question=timelines.MEMORY_QUESTION,
            how_to_read=f"{timelines.MEMORY_HOW_TO_READ} {_EQUAL}",
            groups=[
                timelines.memory_timelines(f"memory-{place}", title, records)
                for place, title, records in groups
            ],
            num_left_out=max(0, len(places) - _MOST_PICTURES),
        ),
    ]


def _is_equal(contents: Contents, workload: str, arm: str) -> bool:
    """Whether an arm equals the one that it is compared with, in every measure and seed."""
    own = [each for place, each in contents.found.items() if place[:2] == (arm, workload)]
    return bool(own) and all(each.is_equal for each in own)


def _first_record(results: Results, arm: str, workload: str) -> RunRecord | None:
    records = (results.record(arm, workload, seed) for seed in results.seeds)
    return next((record for record in records if record is not None), None)
