"""The first difference of two traces, as text."""

from __future__ import annotations

import json
from typing import Any

from paged_plugins.decisions.diff import Difference
from paged_plugins.decisions.side_by_side import one_step, side_by_side, totals
from paged_plugins.decisions.text import echo

Trace = list[dict[str, Any]]


def show_difference(
    difference: Difference,
    name: str,
    sides: tuple[str, str],
    traces: tuple[Trace, Trace],
    as_json: bool,
) -> None:
    """Print a difference.

    Args:
        name: of the scenario; may be empty.
        sides: what the two traces are called.
    """
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
