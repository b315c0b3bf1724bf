"""``paged-core replay`` and ``paged-core diff``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import Given
from paged_core.errors import SettingsError
from paged_plugins.decisions.diff import Difference, first_difference
from paged_plugins.decisions.replay import Outcome, replay, settings_of
from paged_plugins.decisions.scenario import Case, read_case
from paged_plugins.decisions.side_by_side import one_step, side_by_side, totals
from paged_plugins.decisions.trace import KEYS, read_traces

Trace = list[dict[str, Any]]


def replay_command(
    given: Given,
    files: Annotated[list[Path], typer.Argument(help="Scenarios or recorded cases, YAML or JSON.")],
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per step.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare with the recorded traces; exit 1 if any differs."),
    ] = False,
) -> int:
    """Run scenarios without a model and print the decisions of every step.

    A scenario contains its settings: neither options nor the environment change them.
    """
    _refuse_settings(given)
    cases = [read_case(path) for path in files]
    for case in cases:
        settings_of(case.scenario, given.registry)
    if check:
        return _check(cases, given, as_json)
    several = len(cases) > 1
    for case in cases:
        name = case.scenario.name
        if not as_json:
            print_heading(name, case.scenario.about)
        outcome = Outcome()
        for line in replay(case.scenario, given.registry, outcome):
            if as_json:
                echo(json.dumps({"scenario": name, **line} if several else line))
            else:
                echo(_in_words(line))
        if not as_json:
            _print_outcome(outcome, case.scenario.max_steps)
    return 0


def diff_command(
    given: Given,
    first: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace or a recorded case.")],
    second: Annotated[Path, typer.Argument(metavar="TRACE", help="The one to compare it with.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show the first step in which two decision traces differ; exit 1 if there is one."""
    _refuse_settings(given)
    ours, theirs = read_traces(first), read_traces(second)
    if len(ours) == len(theirs) == 1:
        pairs = [("", next(iter(ours.values())), next(iter(theirs.values())))]
    else:
        only = sorted(set(ours) ^ set(theirs))
        if only:
            named = ", ".join(name or "no name" for name in only)
            raise SettingsError(
                f"only one of the two files has a trace of {named}; where a file has several, "
                "traces are matched by the scenario name, which `replay --json` writes when it is "
                "given several files"
            )
        pairs = [(name, ours[name], theirs[name]) for name in ours]
    found = False
    for name, one, other in pairs:
        difference = first_difference(one, other)
        if difference is not None:
            found = True
            _show(difference, name, (str(first), str(second)), (one, other), as_json)
    if not found:
        if as_json:
            echo(json.dumps({"equal": True}))
        else:
            echo(f"equal: {sum(len(one) for _, one, _ in pairs)} steps")
    return int(found)


def _check(cases: Sequence[Case], given: Given, as_json: bool) -> int:
    missing = [str(case.path) for case in cases if case.trace is None]
    if missing:
        raise SettingsError(f"no recorded trace to compare with in {', '.join(missing)}")
    num_different = 0
    for case in cases:
        assert case.trace is not None
        name = case.scenario.name
        trace = list(replay(case.scenario, given.registry))
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
            _show(difference, name, sides, (trace, case.trace), as_json)
        num_different += difference is not None
    if not as_json:
        echo(f"{len(cases) - num_different} of {len(cases)} traces equal")
    return int(num_different > 0)


def _show(
    difference: Difference,
    name: str,
    sides: tuple[str, str],
    traces: tuple[Trace, Trace],
    as_json: bool,
) -> None:
    if as_json:
        row: dict[str, Any] = {
            "equal": False,
            "step": difference.step,
            "keys": list(difference.keys),
            "first": difference.first,
            "second": difference.second,
            "before": difference.before,
        }
        echo(json.dumps({"scenario": name, **row} if name else row))
        return
    where = f" of {name}" if name else ""
    echo(f"DIFFERENT at step {difference.step}{where}")
    if difference.before is not None:
        echo(f"\n  step {difference.before['step']}, the same in both")
        for text in one_step(difference.before):
            echo(text)
    echo(f"\n  step {difference.step}")
    if difference.first is None or difference.second is None:
        for side, line in zip(sides, (difference.first, difference.second), strict=True):
            echo(f"    {side} {'has ended' if line is None else 'goes on'}")
            for text in one_step(line) if line else ():
                echo(text)
    else:
        for text in side_by_side(sides, (difference.first, difference.second)):
            echo(text)
    echo("\n  in all")
    for text in totals(sides, traces):
        echo(text)


def _print_outcome(outcome: Outcome, max_steps: int) -> None:
    for name, reason in outcome.refused.items():
        echo(f"{name} was not completed: {reason}")
    if outcome.unfinished:
        echo(f"stopped after {max_steps} steps; unfinished: {_names(outcome.unfinished)}")


def _in_words(line: dict[str, Any]) -> str:
    """One step on one line; empty fields are left out."""
    parts = [f"step {line['step']:4}"]
    scheduled = " ".join(f"{name}:{count}" for name, count in line["scheduled"].items())
    parts.append(f"runs {scheduled}" if scheduled else "runs nothing")
    for key in KEYS[2:8]:
        value = line.get(key)
        if isinstance(value, dict):
            value = [f"{name}:{count}" for name, count in value.items() if count]
        if value:
            parts.append(f"{key.replace('_', ' ')} {_names(value)}")
    if line.get("waiting"):
        parts.append(f"waiting {_names(line['waiting'])}")
    if line.get("swapped"):
        parts.append(f"swapped {_names(line['swapped'])}")
    parts.append(f"{line['free_blocks']} blocks free")
    return " | ".join(parts)


def _names(names: Sequence[str]) -> str:
    shown = " ".join(names[:12])
    return f"{shown} (+{len(names) - 12})" if len(names) > 12 else shown or "-"


def _refuse_settings(given: Given) -> None:
    files = {
        "--config": given.config,
        "--env-file": given.env_file,
        "--secrets-dir": given.secrets_dir,
    }
    named = [option for option, path in files.items() if path is not None]
    named += [f"--{entry.key}" for entry in given.options]
    if named:
        raise SettingsError(
            f"{named[0]} has no effect here: scenarios and traces bring their settings"
        )


def print_heading(name: str, about: str) -> None:
    echo(f"{name}: {about}" if about else name)


def echo(text: str) -> None:
    sys.stdout.write(text + "\n")
