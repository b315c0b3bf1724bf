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
from paged_core.config.entry import Entry, Layer, Origin
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.lab.commands.chosen_measures import chosen_measures
from paged_plugins.lab.commands.progress import progress
from paged_plugins.lab.comparison.comparison import Comparison
from paged_plugins.lab.comparison.differences_table import table_lines
from paged_plugins.lab.comparison.findings import CONFIDENCE, Findings
from paged_plugins.lab.comparison.folder import check_folder, manifest_of, write_folder
from paged_plugins.lab.comparison.variation import parse_variation, plan_arms
from paged_plugins.lab.measures.measure import MEASURES
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.study.ablation import MAX_RUNS
from paged_plugins.lab.study.arm import Arm
from paged_plugins.lab.study.counted import counted
from paged_plugins.lab.tasks.workers import num_workers
from paged_plugins.workloads.named import workload_spec

_PLAIN_WIDTH = 100
"""Columns, where the output is no terminal."""
_VIRTUAL = "simulated"
_SIMULATED: Layer = (Entry(("executor",), _VIRTUAL, Origin("default", "compare")),)
_Limit = Annotated[float | None, typer.Option(min=0, help="A limit for goodput (default: none).")]


def compare_command(
    given: Given,
    workload: Annotated[str, typer.Argument(help="A workload's name, or a file.")],
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=A,B",
            help="A setting and its values; the others are compared with the first. Repeatable: "
            "within each combination of the further settings. A value may be a table: "
            "'scheduler={name: token_budget, max_num_seqs: 8},prefill_or_decode'.",
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every arm.")] = 6,
    real: Annotated[
        bool, typer.Option("--real", help="Run the model, in real time, instead of a simulation.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at a time (default: one a core; one, if they are real)."),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What to compare instead of the usual measures; repeatable. The fewer, the "
            f"narrower the intervals. {', '.join(MEASURES)}.",
        ),
    ] = None,
    slo_ttft_ms: _Limit = None,
    slo_tpot_ms: _Limit = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with pictures, too.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep all results, for paged-core lab report."),
    ] = None,
) -> None:
    """Vary settings under one workload, and say what that changes, and what is chance.

    Every arm serves the same requests with the same seeds, on a virtual clock: the real scheduler,
    allocator and policies, and a cost model (--cost-model) for the time of a step. Differences are
    paired over the seeds; with 95% confidence none of all the intervals misses. A star marks a
    difference that is not chance.
    """
    arms = plan_arms([parse_variation(each) for each in vary], given, () if real else _SIMULATED)
    _check_executor(arms, real=real)
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
        check_folder(output)
    if html is not None and not html.parent.is_dir():
        raise SettingsError(f"--html {html}: there is no folder {html.parent}; make it first")
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
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PLAIN_WIDTH
        for line in _text(findings, num_runs, width):
            typer.echo(line)


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


def _check_executor(arms: list[tuple[Arm, EngineSettings]], *, real: bool) -> None:
    for arm, settings in arms:
        name = settings.executor.name
        if not real and name != _VIRTUAL:
            raise SettingsError(
                f"executor {name!r} ({arm.label}) takes real time; give --real as well, or "
                f"--executor {_VIRTUAL}"
            )
        if real and name == _VIRTUAL:
            raise SettingsError(f"--real: executor {name!r} ({arm.label}) runs no model")


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
