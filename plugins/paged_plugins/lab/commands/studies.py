"""``compare``, ``lab run`` and ``lab report``: the doors to studies."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli import FAILED, OK
from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_plugins.command_options import check_writable, refuse_settings
from paged_plugins.lab.commands.load import fit
from paged_plugins.lab.commands.options import (
    STUDY_FILE,
    Cache,
    Limit,
    Load,
    Real,
    Replicas,
    Workers,
    WorkingSet,
    WorkloadName,
    check_executor,
    chosen_measures,
    executor_layer,
    shares,
)
from paged_plugins.lab.load.fractions import choice_sentences
from paged_plugins.lab.load.remedies import with_remedies
from paged_plugins.lab.measures import MEASURES, SHOWN, ServiceLevel
from paged_plugins.lab.results.folder import (
    CAPACITY,
    ResultsFolder,
    check_folder,
    make_folder,
    new_manifest,
    write_folder,
)
from paged_plugins.lab.results.results import Advance, run_study
from paged_plugins.lab.statistics.comparison import DECIDED, Comparison, print_differences
from paged_plugins.lab.study.arms import (
    Arm,
    PlannedArm,
    block_size_note,
    parse_variation,
    varied_arms,
)
from paged_plugins.lab.study.excess import excess_notes
from paged_plugins.lab.study.study import MAX_RUNS, Fractions, Study, read_study
from paged_plugins.lab.study.unused import refuse_unused
from paged_plugins.lab.tasks.peers import (
    OURS,
    Choice,
    ResidentEngines,
    load_of,
    named_peers,
)
from paged_plugins.lab.tasks.pool import Runner, num_workers, open_runner
from paged_plugins.machine import device_of
from paged_plugins.progress import counted, progress
from paged_plugins.workloads.named import workload_spec
from paged_plugins.written_files import write_text

Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=A,B",
        help="A setting and its values, or labelled tables ('scheduler=tight:{...},wide:{...}'), "
        "compared with the first; repeatable: within each combination.",
    ),
]
PeerNames = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME[=PYTHON]",
        help="Another engine as an arm, in real time (an unknown name lists all); repeatable. "
        "PYTHON is that of an environment that has it.",
    ),
]
OneAtATime = Annotated[
    bool,
    typer.Option(
        "--one-at-a-time",
        help="With --peer: one after the other, as on CUDA.",
    ),
]
Temperature = Annotated[float, typer.Option(min=0, metavar="T", help="With --peer. 0: greedy.")]
WriteCache = Annotated[
    bool,
    typer.Option(
        "--write-cache",
        help="With --peer: write the whole cache before measuring.",
    ),
]
Measure = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Compare these alone (an unknown name lists all), in narrower intervals; repeatable.",
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


_NO_OBSERVERS = (
    "leave observers out: all runs would write the same files; give --observers to "
    "`paged-core simulate`"
)


def compare_command(
    given: SettingsArgs,
    workload: WorkloadName,
    vary: Vary = None,
    peer: PeerNames = None,
    one_at_a_time: OneAtATime = False,
    temperature: Temperature = 0.0,
    write_cache: WriteCache = False,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of every arm.")] = 6,
    real: Real = False,
    replicas: Replicas = None,
    load: Load = None,
    cache: Cache = None,
    working_set: WorkingSet = None,
    workers: Workers = None,
    measure: Measure = None,
    ties: Annotated[
        bool,
        typer.Option(
            "--ties",
            help="Mark differences that simultaneous arrivals decide.",
        ),
    ] = False,
    slo_ttft_ms: Limit = None,
    slo_tpot_ms: Limit = None,
    as_json: AsJson = False,
    html: Html = None,
    output: Output = None,
) -> int:
    """Vary settings, or the engine, under one workload, and say what that changes beyond chance.

    Every arm serves the same requests, on a virtual clock unless --real or --peer is given (then in
    turns, all at once). Differences are paired over the seeds; with 95% confidence none of all the
    intervals misses. The exit status is 1 if a request fails.
    """
    real = real or bool(peer)
    variations = [parse_variation(each) for each in vary or ()]
    if not (variations or peer):
        raise SettingsError("there is nothing to compare; give --vary or --peer")
    below = executor_layer("compare", given.registry, real=real, replicas=replicas)
    if any(each.key.partition(".")[0] == "observers" for each in variations):
        raise SettingsError(_NO_OBSERVERS)
    if any(each.key == "replicas" for each in variations):
        raise SettingsError(
            "--vary replicas: all arms have as many; give --replicas N, and compare the results of "
            "one number with those of another"
        )
    arms = varied_arms(variations, given, below)
    engines = _engines(peer or (), arms, temperature)
    if replicas is not None and real:
        raise SettingsError("--real: a cluster is simulated; leave --real out")
    if ties and real:
        raise SettingsError("--ties: real times differ anyway; leave it out where a model runs")
    keys = [*(each.key for each in variations), *(entry.key for entry in given.options)]
    for one in arms:
        check_executor(one.settings, real=real, arm=one.arm.label)
        if one.settings.observers:
            raise SettingsError(_NO_OBSERVERS)
    refuse_unused(keys, [one.settings for one in arms], given.registry, replicas)
    loads = shares(load)
    num_runs = len(arms) * seeds * max(1, len(loads))
    if num_runs > MAX_RUNS:
        raise SettingsError(
            f"--seeds {seeds}: these are {num_runs:,} runs, and {MAX_RUNS:,} is the most"
        )
    study = Study(
        arms=arms,
        workloads=[workload_spec(workload)],
        seeds=range(seeds),
        slo=ServiceLevel(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms),
        command=shlex.join(["paged-core", *sys.argv[1:]]),
        num_replicas=replicas,
        fractions=Fractions(load=loads, cache=cache, working_set=working_set),
    )
    study.check_fractions()
    study.check_cost_models(given.registry)
    _say([*study.check_workloads(), *excess_notes(study.arms, given.registry)])
    chosen = chosen_measures(measure, study.slo, is_cluster=replicas is not None) or SHOWN
    resident = None
    if engines:
        device = device_of(arms[0].settings)
        load_of_all = load_of(
            arms[0].settings, study.workloads, device=device, temperature=temperature
        )
        resident = ResidentEngines(
            engines,
            replace(load_of_all, write_cache=write_cache),
            one_at_a_time=one_at_a_time or device != "cpu",
            tell=partial(echo, err=True),
        )
    if html is not None:
        from paged_plugins.lab.report import drawing

        with drawing():  # what it needs is missed before anything is run
            pass
    if output is not None:
        make_folder(output)
    study = study.once(given.registry)
    if not study.is_real:  # whose models are read at once, and are large
        study = fit(study.pinned(), given.registry, workers=workers).watched(given.registry)
    num_runs = len(study)
    count = num_workers(num_runs, workers, is_real=real)
    all_runs = num_runs * (1 + ties)
    with _running(given.registry, arms, all_runs, "comparing", workers=count) as (runner, advance):
        results = run_study(study, resident or runner, advance, keeps_records=bool(html or output))
        results = with_remedies(study, results, runner)
        if ties:
            reversed_ties = replace(study, reverses_ties=True, baselines={})
            others = run_study(reversed_ties, runner, advance)
    for name in (measure and chosen) or ():
        if results.runs and not any(name in run.measures for run in results.runs):
            raise SettingsError(f"--measure {name}: no run has it; leave it out")
    if html or output:
        manifest = new_manifest(study, given.registry)
        results = replace(results, manifest=manifest.model_dump(mode="json"))
        if output is not None:
            write_folder(output, study, results, given.registry, manifest)
    found = Comparison.of(results, chosen)
    if ties:
        found = found.with_ties(Comparison.of(others, chosen))
    if html is not None:
        from paged_plugins.lab.report import html as page

        write_text(html, page(found))
    if as_json:
        print_json(found.document())
    else:
        _print(found, num_runs)
    return FAILED if results.failures or results.is_nothing else OK


def _engines(peers: Sequence[str], arms: list[PlannedArm], temperature: float) -> dict[str, Choice]:
    """Return the engines of arms that run in processes of their own, by label, and append the arms
    of other engines; none without these.
    """
    if not peers:
        return {}
    base = arms[0]
    if base.settings.model == "demo":
        raise SettingsError("--model demo is known to this engine only; give a folder or a hub id")
    engines = {one.arm.label: Choice(OURS, None, one.settings, one.arm.label) for one in arms}
    for choice in named_peers(peers, base.settings.model, base.settings.dtype, temperature):
        engines[choice.name] = choice
        arm = Arm(label=choice.name, axis="engine", compared_with=base.arm.label)
        arms.append(PlannedArm(arm, base.settings))
    return engines


@contextmanager
def _running(
    registry: Registry,
    arms: Sequence[PlannedArm],
    num_runs: int,
    what: str,
    *,
    workers: int,
) -> Iterator[tuple[Runner, Advance]]:
    """Start what runs the tasks of a study, and show how many have ended."""
    if note := block_size_note(one.settings for one in arms):
        echo(note, err=True)
    with (
        open_runner(registry, workers=workers) as runner,
        progress(num_runs, what) as advance,
    ):
        yield runner, advance


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        echo(note, err=True)


def _print(found: Comparison, num_runs: int) -> None:
    results = found.results
    for told in choice_sentences(results.chosen, results.arms[0].title):
        echo(told)
    print_differences(
        found,
        f"{', '.join(results.workloads)}: {num_runs} runs, {counted(len(results.seeds), 'seed')}, "
        f"differences with {found.confidence:.0%} intervals for all of them together",
    )


Ablation = Annotated[
    Path, typer.Argument(metavar="FILE", help="The ablation, YAML.", show_default=False)
]
RunOutput = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="For the results (default: FILE's name and -results)."),
]


def run_command(
    given: SettingsArgs,
    file: Ablation,
    output: RunOutput = None,
    workers: Workers = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the results in FOLDER.")] = False,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Count the decisions of what arms vary, and those that the baseline's component, "
            "asked beside it, would have made otherwise.",
        ),
    ] = False,
) -> int:
    """Run an ablation: every arm on the same requests with the same seeds.

    Results go to one folder. Killed or stopped, the command goes on where it was when it is given
    again; runs that failed, or in which a request ended with an error, are tried again, and make
    the exit status 1. Settings are those of the file alone: neither options
    nor the environment change them.
    """
    refuse_settings(given, STUDY_FILE)
    study = read_study(file, given.registry)
    _say([*study.check_workloads(), *excess_notes(study.arms, given.registry)])
    if shadow:
        if study.is_real:
            raise SettingsError("--shadow: it would be timed, too; leave it out where a model runs")
        study = study.watched(given.registry)
    folder = output or Path(f"{file.stem}-results")
    check_folder(folder, study, fresh=fresh)
    kept_runs = folder / CAPACITY
    study = fit(study, given.registry, workers=workers, say=True, kept=kept_runs, fresh=fresh)
    failed = 0
    with ResultsFolder(folder, study, given.registry, fresh=fresh) as kept:
        missing = kept.missing(study)
        count = num_workers(len(missing), workers, is_real=study.is_real)
        echo(beginning(study, len(missing), count), err=True)
        with _running(given.registry, study.arms, len(missing), "running", workers=count) as (
            runner,
            advance,
        ):
            for ran in runner(missing):
                ran = kept.keep(ran)
                advance(1)
                if ran.failure:
                    failed += 1
                    echo(f"failed: {ran.task}: {ran.failure}", err=True)
        kept.finish()
    if failed:
        echo(f"{counted(failed, 'run')} failed; run this again to retry", err=True)
    echo(f"results in {folder}; to read them: paged-core lab report {folder}")
    return FAILED if failed else OK


def beginning(study: Study, num_missing: int, workers: int) -> str:
    """Say what will be run, and how."""
    parts = [str(study)]
    if len(study.arms) == 1:
        parts.append("nothing is compared, as no value of `axes` differs from the base's")
    if num_missing < len(study):
        parts.append(f"{len(study) - num_missing} done before")
    if study.is_real and workers == 1:
        parts.append("one at a time, as they are timed on this machine")
    elif study.is_real:
        parts.append(f"{workers} at a time, which share the machine: their times are no measure")
    elif workers != 1:
        parts.append(f"{workers} at a time")
    return "; ".join(parts)


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
) -> int:
    """Report results: differences with confidence intervals, plots, what was run.

    Without options, `report.md` and `report.html` are written into the folder. The differences that
    are decided are printed too. Of an arm that failed nothing is concluded, and the exit status is
    1, as it is if no request was served.
    """
    from paged_plugins.lab.report import html as page
    from paged_plugins.lab.report import markdown as tables
    from paged_plugins.lab.results.load_results import load_results

    results = load_results(folder)
    is_cluster = results.num_replicas is not None
    measures = chosen_measures(measure, results.slo, is_cluster=is_cluster) or list(MEASURES)
    if html is None and markdown is None:
        html, markdown = folder / "report.html", folder / "report.md"
    told, made = Comparison.of(results, measures), {}
    if markdown is not None:
        made[markdown] = tables(told)
    if html is not None:
        made[html] = page(told)
    print_differences(told, is_shown=DECIDED)
    for path, text in made.items():
        write_text(path, text)
        echo(f"wrote {path}")
    return FAILED if results.failures or results.is_nothing else OK
