"""``compare``, ``lab run``, ``lab search`` and ``lab report``: the doors to studies."""

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

from paged_core.cli import FAILED, OK
from paged_core.cli.options import Given
from paged_core.cli.output import print_json
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.counted import counted
from paged_plugins.given_settings import refuse_settings
from paged_plugins.lab.commands.options import (
    STUDY_FILE,
    AsJson,
    Limit,
    OnRay,
    Real,
    Workers,
    WorkloadName,
    check_executor,
    chosen_measures,
    executor_layer,
)
from paged_plugins.lab.comparison.comparison import Comparison
from paged_plugins.lab.measures import MEASURES, ServiceLevel
from paged_plugins.lab.report.plain import CONFIDENCE, Findings, table_lines
from paged_plugins.lab.results.folder import ResultsFolder, make_folder, manifest_of, write_folder
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.search.report import document, print_search
from paged_plugins.lab.search.search import num_runs, planned_rungs, run_search
from paged_plugins.lab.study.arms import block_size_note, parse_variation, varied_arms
from paged_plugins.lab.study.study import MAX_RUNS, Plan, arms_of, read_plan, read_search
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.lab.tasks.task import Ran
from paged_plugins.output_file import write_json
from paged_plugins.output_option import JsonFile, check_writable
from paged_plugins.progress import progress
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


Ablation = Annotated[
    Path, typer.Argument(metavar="FILE", help="The ablation, YAML.", show_default=False)
]
RunOutput = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="For the results (default: FILE's name and -results)."),
]


def run_command(
    given: Given,
    file: Ablation,
    output: RunOutput = None,
    workers: Workers = None,
    ray: OnRay = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the results in FOLDER.")] = False,
) -> int:
    """Run an ablation: every arm on the same requests with the same seeds.

    Results go to one folder. Killed or stopped, the command goes on where it was when it is given
    again; runs that failed are tried again. Settings are those of the file alone: neither options
    nor the environment change them.
    """
    refuse_settings(given, STUDY_FILE)
    plan = read_plan(file, given.registry)
    folder = output or Path(f"{file.stem}-results")
    failed: list[Ran] = []
    with ResultsFolder(folder, plan, given.registry, fresh=fresh) as results:
        missing = results.missing()
        all_of_cluster = ray is not None and workers is None and not plan.is_real
        count = None if all_of_cluster else num_workers(len(missing), workers, is_real=plan.is_real)
        typer.echo(beginning(plan, len(missing), count), err=True)
        if note := block_size_note(one.settings for one in plan.arms):
            typer.echo(note, err=True)
        with (
            open_runner(given.registry, workers=count, cluster=ray if missing else None) as runner,
            progress(len(missing), "running") as advance,
        ):
            for ran in runner(missing):
                results.keep(ran)
                advance()
                if ran.problem:
                    failed.append(ran)
                    typer.echo(f"failed: {ran.task}: {ran.problem}", err=True)
        has_parquet = results.finish()
    if not has_parquet:
        typer.echo(
            "note: tables are in JSON alone; for Parquet, pip install 'paged-core[lab]'", err=True
        )
    if failed:
        typer.echo(f"{counted(len(failed), 'run')} failed; run this again to retry", err=True)
    typer.echo(f"results in {folder}; to read them: paged-core lab report {folder}")
    return FAILED if failed else OK


def beginning(plan: Plan, num_missing: int, workers: int | None) -> str:
    """Say what will be run, and how."""
    parts = [str(plan)]
    total = len(list(plan.tasks()))
    if num_missing < total:
        parts.append(f"{total - num_missing} done before")
    if plan.is_real and workers == 1:
        parts.append("one at a time, as they are timed on this machine")
    elif plan.is_real:
        parts.append(f"{workers} at a time, which share the machine: their times are no measure")
    elif workers != 1:
        parts.append(f"{workers or 'one for each core of the cluster'} at a time")
    return "; ".join(parts)


def search_command(
    given: Given,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The search, YAML.", show_default=False)
    ],
    workers: Workers = None,
    ray: OnRay = None,
    as_json: AsJson = False,
    output: JsonFile = None,
) -> None:
    """Search all combinations of settings for the best, in simulation.

    By successive halving: all combinations take part in the first round, with few requests; the
    better ones go on, with more. The best are run again with fresh seeds and compared with the
    base. Settings are those of the file alone.
    """
    refuse_settings(given, STUDY_FILE)
    search = read_search(file)
    arms = arms_of(search, file, given.registry)
    planned = planned_rungs(search, len(arms))
    total = num_runs(search, planned)
    typer.echo(f"up to {total} runs: {', then '.join(map(str, planned))}", err=True)
    if note := block_size_note(one.settings for one in arms):
        typer.echo(note, err=True)
    all_of_cluster = ray is not None and workers is None
    count = None if all_of_cluster else num_workers(total, workers, is_real=False)
    with (
        open_runner(given.registry, workers=count, cluster=ray) as runner,
        progress(total, "searching") as advance,
    ):
        found = run_search(search, arms, runner, advance)
    if output is not None:
        write_json(output, document(found))
    if as_json:
        print_json(document(found))
    else:
        print_search(found)


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="As `lab run` has written it.")],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with plots.", callback=check_writable),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write tables in Markdown.", callback=check_writable),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What to compare (default: everything); repeatable. The fewer, the narrower the "
            "intervals.",
        ),
    ] = None,
    block_map: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what the observer block_map has written, too."),
    ] = None,
) -> None:
    """Report results: the answer, differences with confidence intervals, plots, what was run.

    Without options, `report.md` and `report.html` are written into the folder. The answer is
    printed too.
    """
    from paged_plugins.block_history import BlockHistory
    from paged_plugins.lab.commands.options import chosen_measures
    from paged_plugins.lab.measures import MEASURES
    from paged_plugins.lab.report import write_html, write_markdown
    from paged_plugins.lab.results.load_results import load_results
    from paged_plugins.lab.statistics.differences import differences
    from paged_plugins.lab.statistics.sentences import sentences

    results = load_results(folder)
    measures = chosen_measures(measure, results.slo) or list(MEASURES)
    blocks = None if block_map is None else BlockHistory(block_map)
    if html is None and markdown is None:
        html, markdown = folder / "report.html", folder / "report.md"
    if markdown is not None:
        write_markdown(results, markdown, measures=measures)
    if html is not None:
        write_html(results, html, measures=measures, blocks=blocks)
    for sentence in sentences(results, differences(results, measures=measures)):
        typer.echo(sentence)
    for path in filter(None, (markdown, html)):
        typer.echo(f"wrote {path}")
