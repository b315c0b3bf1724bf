"""``paged-core replay``: the decisions of scenarios, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli import FAILED, OK
from paged_core.cli.options import SettingsArgs
from paged_core.cli.output import echo, print_table
from paged_core.errors import SettingsError
from paged_core.settings.schema import Resolved
from paged_plugins.decisions.counterfactual import counterfactual
from paged_plugins.decisions.diff import first_difference, listed, show_difference, side_by_side
from paged_plugins.decisions.replay import check_settings, replay, settings_layer
from paged_plugins.decisions.replay_run import Outcome, RequestTimes
from paged_plugins.decisions.scenario import Case, find_cases, read_case
from paged_plugins.decisions.trace import FAILED as TRACE_FAILED
from paged_plugins.decisions.trace import UNFINISHED, VERSION, in_version, version_of
from paged_plugins.progress import counted, errors_text

_IN_WORDS = ("cached", "preempted", "swapped_out", "swapped_in", "ignored", "finished")
_OF_MODELS = {
    *("model", "tokenizer", "dtype", "device", "threads", "kv_cache_memory", "deterministic"),
    *("enforce_eager", "trust_remote_code", "allow_pickle", "attention", "runner"),
}
"""Settings on which no decision depends."""


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario with the settings that it is replayed under."""

    case: Case
    resolved: Resolved

    @property
    def name(self) -> str:
        return self.case.scenario.name

    def trace(self, outcome: Outcome | None = None) -> Iterator[dict[str, Any]]:
        """Replay it; see :func:`~paged_plugins.decisions.replay.replay`."""
        registry, settings = self.resolved.registry, self.resolved.settings
        return replay(self.case.scenario, registry, outcome, settings)

    def overrides(self) -> str:
        """The settings that replace the scenario's own, and where each is written; or nothing.

        Those that only concern models are left out.
        """
        settings = self.resolved.settings.model_dump(mode="json")
        found = []
        for key, origin in self.resolved.origins.items():
            slot, _, option = key.partition(".")
            is_own = origin.layer in {"default", "profile"} or origin.where == str(self.case.path)
            if is_own or slot in _OF_MODELS:
                continue
            value = settings[slot][option] if option else settings[slot]
            found.append(f"{key}={value} ({origin})")
        return ", ".join(found)


def replay_command(
    given: SettingsArgs,
    files: Annotated[
        list[Path],
        typer.Argument(help="Scenarios or recorded cases, YAML or JSON, or folders of them."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per step.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare with the recorded traces; exit 1 if any differs."),
    ] = False,
    by_request: Annotated[
        bool,
        typer.Option("--requests", help="A line per request, with its times, not one per step."),
    ] = False,
    at: Annotated[
        int | None, typer.Option(min=0, metavar="STEP", help="With --instead: the step.")
    ] = None,
    instead: Annotated[
        str | None,
        typer.Option(
            metavar="SLOT=NAME",
            help="Let another component decide in the step --at, as in victim=fewest_computed, and "
            "show what that changes.",
        ),
    ] = None,
) -> int:
    """Run scenarios without a model and print the decisions of every step.

    Settings given by option, variable or file replace those of the scenario; the output says which.
    The exit status is 1 if a request ended with an error, or a replay was stopped at `max_steps`.
    """
    runs = [_run(path, given) for path in find_cases(files)]
    if overrides := runs[0].overrides():
        told = f"settings over the scenario's own: {overrides}"
        echo(told, err=as_json)  # a trace holds nothing else
    if runs[0].resolved.settings.observers and (len(runs) > 1 or instead is not None):
        raise SettingsError(
            "leave observers out: all replays would write the same files; give them for one alone"
        )
    if at is not None or instead is not None:
        if at is None or instead is None or check or by_request or len(runs) > 1:
            raise SettingsError("--at and --instead are given together, for one scenario alone")
        return _otherwise(runs[0], at, instead, as_json)
    if check:
        if by_request:
            raise SettingsError("--check compares steps; leave --requests out")
        return _check(runs, as_json)
    _refuse_equal_names(runs, as_json)
    broken = [_print(run, as_json, by_request, len(runs) > 1) for run in runs]
    return FAILED if any(broken) else OK


def _otherwise(run: Run, at: int, instead: str, as_json: bool) -> int:
    """Print what decisions of one step are worth."""
    registry, settings = run.resolved.registry, run.resolved.settings
    found = counterfactual(run.case.scenario, registry, settings, at, instead)
    if as_json:
        echo(json.dumps(found))
        return OK
    was, other = found["decided"]
    echo(f"{run.name}: step {at}, decided by {instead} instead")
    if was == other:
        echo("it decides as was decided, and nothing changes")
        return OK
    for text in side_by_side(("as it was", "instead"), (was, other)):
        echo(text)
    for key, what in (("measures", "in all"), ("requests", "request ends, s")):
        changed = [
            (name, f"{one:,.6g}", f"{two:,.6g}", f"{two - one:+,.6g}")
            for name, (one, two) in found[key].items()
        ]
        if changed:
            print_table("", (what, "as it was", "instead", "change"), changed)
    return OK


def _print(run: Run, as_json: bool, by_request: bool, names_scenario: bool) -> bool:
    """Replay and print one scenario; whether a request of it failed, or it was stopped."""
    outcome, scenario = Outcome(), run.case.scenario
    named = {"scenario": run.name} if names_scenario else {}
    if not as_json:
        echo(f"{run.name}: {scenario.about}" if scenario.about else run.name)
    if by_request:
        for _ in run.trace(outcome):
            pass
        _print_requests(outcome.requests, named, as_json)
    elif as_json:
        _print_trace(run, outcome, named)
    else:
        shows_time = run.resolved.settings.executor.name != "memory"
        for line in run.trace(outcome):
            echo(_in_words(line, shows_time))
    if not as_json:
        for name, reason in outcome.refused.items():
            echo(f"{name} was not completed: {reason}")
    for abort in outcome.vain_aborts:
        told = f"the abort of {abort.id} at step {abort.step} had no effect: it was not running "
        echo(f"{told}then, or that step was not reached", err=as_json)
    _print_errors(run, outcome, as_json)
    if outcome.unfinished:
        stopped = f"stopped after {scenario.max_steps} steps; unfinished: "
        stopped += listed(outcome.unfinished)
        if as_json:
            echo(f"{run.name}: {stopped}; raise max_steps", err=True)
        else:
            echo(stopped)
    return bool(outcome.errors or outcome.unfinished)


def _print_errors(run: Run, outcome: Outcome, as_json: bool) -> None:
    """Say how many requests ended with an error, if any did, beside a trace in JSON."""
    if told := _errors(run, outcome):
        if as_json:
            echo(f"{run.name} failed: {told}", err=True)
        else:
            echo(f"failed: {told}; what is above is no result")


def _errors(run: Run, outcome: Outcome) -> str:
    """Say how many requests ended with an error, and why; empty if none did."""
    errors = outcome.errors
    cause = next(iter(errors.values()), None)
    return errors_text(len(errors), len(run.case.scenario.numbers), cause) if errors else ""


def _print_requests(requests: Sequence[RequestTimes], named: dict[str, str], as_json: bool) -> None:
    """Print the requests that ran, in the order in which they arrived."""
    by_arrival = sorted(requests, key=lambda each: each.arrived)
    if as_json:
        for each in by_arrival:
            echo(json.dumps({**named, **each.values()}))
        return
    columns = ("request", "arrived", "TTFT", "TPOT", "finished", "prompt", "cached", "output")
    rows = [
        (
            each.id,
            *map(_seconds, (each.arrived, each.ttft, each.tpot, each.finished)),
            *(each.num_prompt, each.num_cached, each.num_output),
        )
        for each in by_arrival
    ]
    print_table("", columns, rows)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"


def _run(path: Path, given: SettingsArgs) -> Run:
    case = read_case(path)
    try:
        resolved = given.resolve(settings_layer(case.scenario, str(path), case.lines))
    except SettingsError as error:
        raise SettingsError(f"scenario {case.scenario.name!r}: {error}") from None
    run = Run(case, resolved)
    try:
        check_settings(case.scenario, resolved.settings)
    except SettingsError as error:
        overrides = run.overrides()
        raise SettingsError(f"{error} ({overrides})" if overrides else str(error)) from None
    return run


def _refuse_equal_names(runs: Sequence[Run], as_json: bool) -> None:
    """Traces of several scenarios are told apart by the scenario's name."""
    paths: dict[str, Path] = {}
    for run in runs if as_json else ():
        if other := paths.get(run.name):
            raise SettingsError(
                f"{other} and {run.case.path} have the same name, {run.name!r}, by which the lines "
                "of their traces could not be told apart; rename one or replay them by themselves"
            )
        paths[run.name] = run.case.path


def _print_trace(run: Run, outcome: Outcome, named: dict[str, str]) -> None:
    last: dict[str, Any] | None = None
    recorded = run.case.trace
    version = VERSION if recorded is None else version_of(recorded)
    for line in run.trace(outcome):
        if last:
            echo(json.dumps({**named, **last}))
        last = in_version(line, version)
    if last:
        marks = {UNFINISHED: outcome.unfinished, TRACE_FAILED: _errors(run, outcome)}
        given = {key: mark for key, mark in marks.items() if mark}
        echo(json.dumps({**named, **last, **given}))


def _check(runs: Sequence[Run], as_json: bool) -> int:
    missing = [str(run.case.path) for run in runs if run.case.trace is None]
    if missing:
        raise SettingsError(f"no recorded trace to compare with in {listed(missing)}")
    num_different, num_failed = 0, 0
    for run in runs:
        outcome = Outcome()
        case, name, trace = run.case, run.name, list(run.trace(outcome))
        assert case.trace is not None
        difference = first_difference(trace, case.trace)
        if as_json:
            step = None if difference is None else difference.step
            keys = [] if difference is None else list(difference.keys)
            row = {"scenario": name, "equal": difference is None, "step": step, "keys": keys}
            echo(json.dumps(row))
        elif difference is None:
            echo(f"equal    {name}")
        else:
            sides = ("replayed", "recorded")
            show_difference(difference, name, sides, (trace, case.trace), as_json)
        num_different += difference is not None
        num_failed += bool(outcome.errors)
        _print_errors(run, outcome, as_json)
    if not as_json:
        echo(f"{len(runs) - num_different} of {len(runs)} traces equal")
    return FAILED if num_different or num_failed else OK


def _in_words(line: dict[str, Any], shows_time: bool) -> str:
    """One step on one line; empty fields are left out."""
    parts = [f"step {line['step']:4}"]
    if shows_time:
        parts.append(f"{line['time']:.3f} s")
    scheduled = " ".join(f"{name}:{count}" for name, count in line["scheduled"].items())
    parts.append(f"runs {scheduled}" if scheduled else "runs nothing")
    for key in _IN_WORDS:
        value = line[key]
        if isinstance(value, dict):
            value = [f"{name}:{count}" for name, count in value.items() if count]
        if value:
            parts.append(f"{key.replace('_', ' ')} {listed(value)}")
    if line["evicted"]:
        parts.append(f"{counted(len(line['evicted']), 'block')} evicted")
    parts += [f"{key} {listed(line[key])}" for key in ("waiting", "swapped") if line[key]]
    parts.append(f"{counted(line['free_blocks'], 'block')} free")
    return " | ".join(parts)
