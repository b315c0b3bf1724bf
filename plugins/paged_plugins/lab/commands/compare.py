"""``paged-core compare``: one workload, settings varied, and what that changes."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from paged_core.cli.options import Given
from paged_core.cli.output import print_json
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.command_options import check_writable
from paged_plugins.lab.commands.chosen_measures import chosen_measures
from paged_plugins.lab.commands.options import AsJson, Limit, Workers, WorkloadName
from paged_plugins.lab.commands.real_option import Real, check_executor, executor_layer
from paged_plugins.lab.comparison.comparison import Comparison
from paged_plugins.lab.comparison.findings import CONFIDENCE, Findings
from paged_plugins.lab.comparison.folder import make_folder, manifest_of, write_folder
from paged_plugins.lab.comparison.text_table import table_lines
from paged_plugins.lab.comparison.variation import parse_variation, varied_arms
from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.study.ablation import MAX_RUNS
from paged_plugins.lab.study.cache_sizes import block_size_note
from paged_plugins.lab.tasks.workers import num_workers
from paged_plugins.progress import counted, progress
from paged_plugins.workloads.named import workload_spec

_PLAIN_WIDTH = 100
"""Columns, where the output is no terminal."""
Vary = Annotated[
    list[str],
    typer.Option(
        metavar="KEY=A,B",
        help="A setting and its values; the others are compared with the first. Repeatable: "
        "within each combination of the further settings. A value may be a table: "
        "'scheduler={name: token_budget, max_num_seqs: 8},prefill_or_decode'.",
    ),
]
Measure = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="What to compare instead of the usual measures; repeatable. The fewer, the "
        f"narrower the intervals. {', '.join(MEASURES)}.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a report with pictures, too.", callback=check_writable
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Keep all results, for paged-core lab report."),
]


def compare_command(
    given: Given,
    workload: WorkloadName,
    vary: Vary,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every arm.")] = 6,
    real: Real = False,
    workers: Workers = None,
    measure: Measure = None,
    slo_ttft_ms: Limit = None,
    slo_tpot_ms: Limit = None,
    as_json: AsJson = False,
    html: Html = None,
    output: Output = None,
) -> None:
    """Vary settings under one workload, and say what that changes, and what is chance.

    Every arm serves the same requests with the same seeds, on a virtual clock: the real scheduler,
    allocator and policies, and a cost model (--cost-model) for the time of a step. Differences are
    paired over the seeds; with 95% confidence none of all the intervals misses. A star marks a
    difference that is not chance.
    """
    variations = [parse_variation(each) for each in vary]
    arms = varied_arms(variations, given, executor_layer("compare", real=real))
    for one in arms:
        check_executor(one.settings, real=real, arm=one.arm.label)
        if one.settings.observers:
            raise SettingsError(
                "leave observers out: all runs would write the same files; give --observers to "
                "`paged-core simulate`"
            )
    if len(arms) * seeds > MAX_RUNS:
        raise SettingsError(
            f"--seeds {seeds}: these are {len(arms) * seeds:,} runs, and {MAX_RUNS:,} is the most"
        )
    comparison = Comparison(
        arms=arms,
        workload=workload_spec(workload),
        num_seeds=seeds,
        slo=ServiceLevel(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms),
    )
    chosen = chosen_measures(measure, comparison.slo) or comparison.measures
    if output is not None:
        make_folder(output)
    if note := block_size_note(one.settings for one in arms):
        typer.echo(note, err=True)
    num_runs = len(arms) * seeds
    with progress(num_runs, "comparing") as advance:
        results = comparison.run(
            given.registry,
            workers=num_workers(num_runs, workers, is_real=real),
            advance=advance,
            keeps_records=bool(html or output),
        )
    findings = Findings.of(results, chosen)
    if html or output:
        _write(comparison, results, given.registry, chosen, html=html, folder=output)
    if as_json:
        print_json(findings.document())
    else:
        _print(findings, num_runs)


def _write(
    comparison: Comparison,
    results: Results,
    registry: Registry,
    measures: list[str],
    *,
    html: Path | None,
    folder: Path | None,
) -> None:
    """Write the report and the folder of results that are wanted."""
    manifest = manifest_of(comparison, registry, shlex.join(["paged-core", *sys.argv[1:]]))
    if folder is not None:
        write_folder(folder, comparison, results, registry, manifest)
    if html is not None:
        from paged_plugins.lab.report import write_html

        described = replace(results, manifest=manifest.model_dump(mode="json"))
        write_html(described, html, measures=measures)


def _print(findings: Findings, num_runs: int) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PLAIN_WIDTH
    for line in _text(findings, num_runs, width):
        typer.echo(line)


def _text(findings: Findings, num_runs: int, width: int) -> Iterator[str]:
    seeds = counted(len(findings.results.seeds), "seed")
    yield (
        f"{findings.results.workloads[0]}: {num_runs} runs, {seeds}, differences with "
        f"{CONFIDENCE:.0%} intervals for all of them together; * moved"
    )
    yield ""
    yield from table_lines(findings.results, findings.differences, width)
    yield ""
    for sentence in findings.sentences:
        yield from wrap(sentence, width, subsequent_indent="  ", break_long_words=False)
