"""``paged-core lab fidelity``: simulations of GPU engines beside their served runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo, print_json, print_table
from paged_plugins.command_options import check_writable, refuse_settings
from paged_plugins.lab.commands.options import Workers
from paged_plugins.lab.cost_models.measured.tables import installed_release, package_folder
from paged_plugins.lab.fidelity.fidelity import MODELS, document, judge, sampled
from paged_plugins.lab.fidelity.host_terms import FITTED, HALVES, fit, num_fitting_runs
from paged_plugins.lab.fidelity.picture import draw
from paged_plugins.lab.fidelity.served_rows import chosen_rows, read_rows
from paged_plugins.lab.tasks.pool import num_workers, open_runner
from paged_plugins.progress import progress
from paged_plugins.written_files import write_text

_KINDS = {"tpot": "time per token", "ttft": "time to first token"}


def fidelity_command(
    given: SettingsArgs,
    system: Annotated[str | None, typer.Option(help="Only runs on it, h100_sxm say.")] = None,
    model: Annotated[str | None, typer.Option(help="Only models with this in their name.")] = None,
    engine: Annotated[str | None, typer.Option(help="Only runs of vllm, trtllm or sglang.")] = None,
    rows: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Runs of each model, system and weights, evenly spread (default: 0, all).",
        ),
    ] = 0,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The package (default: where it is installed)."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw served against simulated times; .svg, .png or .pdf.",
            callback=check_writable,
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the figures as Markdown.",
            callback=check_writable,
        ),
    ] = None,
    fits: Annotated[
        bool,
        typer.Option("--fit", help="Fit the host terms to halves of the dense models instead."),
    ] = False,
    processes: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Simulate runs of GPU engines that were measured, and say how far off that is.

    Each run of the package aiconfigurator-core becomes a closed loop of as many clients, with the
    engine's own options; the roofline and AIConfigurator's estimate stand beside. Host terms are
    fitted to runs of vLLM of half of the dense models, which are marked.
    """
    refuse_settings(given, "each run has its own settings, which the package says")
    folder = tables or package_folder()
    chosen = sampled(chosen_rows(read_rows(folder), system, model, engine), rows or None)
    count = num_workers(len(chosen), processes, is_real=False)
    expressed = [row for row in chosen if row.refusal is None]
    total = num_fitting_runs(expressed) if fits else len(expressed)
    with (
        progress(total, "runs") as advance,
        open_runner(given.registry, workers=count) as runner,
    ):
        if fits:
            found = fit(expressed, folder, runner, advance)
            print_json([each._asdict() | {"terms": each.terms._asdict()} for each in found])
            return
        judged = judge(chosen, folder, runner, advance)
    result = {"package": installed_release(), "split": _split(), **document(judged)}
    if plot is not None:
        draw(judged, plot)
    if markdown is not None:
        write_text(markdown, _markdown(result["groups"]))
    if as_json:
        print_json(result)
    else:
        _print(result)


def _split() -> dict[str, Any]:
    """The halves of the models, and the terms that were fitted to one."""
    return {"fitted": HALVES[1], "judged": HALVES[0], "terms": FITTED._asdict()}


def _print(found: Mapping[str, Any]) -> None:
    groups = found["groups"]
    for kind, title in _KINDS.items():
        print_table(
            f"{title}: median and 90th percentile of the absolute error",
            ["engine", "model", "system", "weights", "runs", *MODELS],
            [
                [
                    line["engine"],
                    line["model"] + ("*" if line["fitted"] else ""),
                    line["system"],
                    line["weights"],
                    f"{line['simulated']} of {line['rows']}",
                    *(_figures(line.get(f"{whose}_{kind}")) for whose in MODELS),
                ]
                for line in groups
                if line["simulated"]
            ],
        )
    for line in groups:
        if line.get("extrapolated"):
            echo(
                f"{line['engine']}, {line['model']}, {line['system']}, {line['weights']}: kernel "
                f"times are extrapolated in {100 * line['extrapolated']:.1f}% of steps"
            )
    for whose, rank in found["ranks"].items():
        echo(
            f"{whose}: of {rank['pairs']:,} pairs of configurations under one load that are 5% "
            f"apart, {100 * rank['right']:.1f}% are ordered rightly"
        )
    echo("the schedulers of trtllm and sglang are approximated by token_budget, that of vllm")
    split = found["split"]
    echo(
        f"host terms ({FITTED.host_per_step:g} s a step, {FITTED.host_per_sequence:g} s a "
        f"sequence) are fitted to {', '.join(split['fitted'])} under vllm alone (*); trtllm and "
        "sglang have no fit of their own"
    )
    _print_reasons(found["not_simulated"])


def _markdown(groups: Sequence[Mapping[str, Any]]) -> str:
    """Both kinds of time beside AIConfigurator's, as documentation has them."""
    columns = [(whose, kind) for whose in (MODELS[0], MODELS[2]) for kind in _KINDS]
    head = ["engine", "model, system, weights", "runs"]
    head += [f"{whose}: {_KINDS[kind]}" for whose, kind in columns]
    rows = [head, ["---", "---", "---:", *("---" for _ in columns)]]
    for line in groups:
        if line["simulated"]:
            fitted = " (fitted to)" if line["fitted"] else ""
            what = f"{line['model']}, `{line['system']}`, {line['weights']}{fitted}"
            figures = [_figures(line.get(f"{whose}_{kind}")) for whose, kind in columns]
            rows.append([line["engine"], what, str(line["simulated"]), *figures])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _print_reasons(reasons: Mapping[str, int]) -> None:
    if reasons:
        echo(f"{sum(reasons.values()):,} runs were not simulated:")
    for reason, count in reasons.items():
        echo(f"  {count:5,}  {reason}")


def _figures(figures: Mapping[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{100 * figures['median']:.1f}% {100 * figures['p90']:.1f}%"
