"""``paged-core diff``: where two traces part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from paged_core.cli.options import Given
from paged_core.errors import SettingsError
from paged_plugins.decisions.diff import first_difference
from paged_plugins.decisions.shown_difference import show_difference
from paged_plugins.decisions.text import echo
from paged_plugins.decisions.trace import read_traces
from paged_plugins.given_settings import refuse_settings


def diff_command(
    given: Given,
    first: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace or a recorded case.")],
    second: Annotated[Path, typer.Argument(metavar="TRACE", help="The one to compare it with.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show the first step in which two decision traces differ; exit 1 if there is one."""
    refuse_settings(given, "a trace is compared as it is; leave it out")
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
            show_difference(difference, name, (str(first), str(second)), (one, other), as_json)
    if not found:
        if as_json:
            echo(json.dumps({"equal": True}))
        else:
            echo(f"equal: {sum(len(one) for _, one, _ in pairs)} steps")
    return int(found)
