"""``paged-core diff``: the first difference of two traces, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from paged_core.cli.options import AsJson, SettingsArgs
from paged_core.cli.output import echo
from paged_core.errors import SettingsError
from paged_plugins.command_options import refuse_settings
from paged_plugins.decisions.trace import DECISIONS, FAILED, KEYS, differing_keys, read_traces

Line = dict[str, Any]
Trace = Sequence[Line]

_ALWAYS = ("scheduled", "running", "waiting", "free_blocks")
_COUNTED = ("cached", "preempted", "swapped_out", "ignored", "finished", "evicted")
_SHOWN = 12
"""Items of a long list that are shown."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step in which two traces differ."""

    step: int
    keys: tuple[str, ...]
    """Keys that differ in it; empty: one trace has ended."""
    first: Line | None
    """The step as the first trace has it; ``None``: that trace has ended."""
    second: Line | None
    before: Line | None
    """The last step before it, equal in both."""


def first_difference(first: Trace, second: Trace) -> Difference | None:
    """Return the first difference, or ``None`` if the traces are equal."""
    before: Line | None = None
    for ours, theirs in zip_longest(first, second):
        keys = differing_keys(ours, theirs) if ours and theirs else []
        if keys or ours is None or theirs is None:
            step = int((ours or theirs)["step"])
            return Difference(step, tuple(keys), ours, theirs, before)
        before = ours
    return None


def one_step(line: Line) -> Iterator[str]:
    """The decisions of a step and the state after it, one key per row."""
    for key in DECISIONS:
        if key in _ALWAYS or line.get(key):
            yield f"    {key:12} {_text(line.get(key))}"


def side_by_side(sides: tuple[str, str], lines: tuple[Line, Line]) -> Iterator[str]:
    """The keys that both have of a step, in two columns; a star marks those that differ."""
    others = [key for key in lines[0] if key not in KEYS]
    rows = []
    for key in (*DECISIONS, *others):
        if key not in lines[0] or key not in lines[1]:
            continue
        ours, theirs = lines[0][key], lines[1][key]
        if key in _ALWAYS or ours or theirs:
            differs = _items(ours) != _items(theirs)
            cells = (_beside(ours, theirs), _beside(theirs, ours))
            rows.append(("*" if differs else " ", key, *cells))
    return _columns(sides, rows)


def totals(sides: tuple[str, str], traces: tuple[Trace, Trace]) -> Iterator[str]:
    """The totals of both traces."""
    rows = [(" ", "steps", *(str(len(trace)) for trace in traces))]
    for what, key in (("tokens", "scheduled"), *((key, key) for key in _COUNTED)):
        if any(key not in line for trace in traces for line in trace):
            continue
        ours, theirs = (sum(_size(line[key]) for line in trace) for trace in traces)
        if ours or theirs:
            rows.append((" ", what, str(ours), str(theirs)))
    return _columns(sides, rows)


def _size(value: Any) -> int:
    """The sum of a dictionary's counts, or the length of a list."""
    return sum(value.values()) if isinstance(value, Mapping) else len(value or ())


def _columns(sides: tuple[str, str], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    width = max(len(sides[0]), *(len(row[2]) for row in rows))
    yield f"    {'':12} {sides[0]:{width}}  {sides[1]}"
    for mark, key, ours, theirs in rows:
        yield f"  {mark} {key:12} {ours:{width}}  {theirs}".rstrip()


def _items(value: Any) -> list[str]:
    """A value as strings: the entries of a dictionary or list, in order."""
    if isinstance(value, Mapping):
        return [f"{name}:{_plain(count)}" for name, count in value.items()]
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    return [] if value is None else [str(value)]


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _text(value: Any) -> str:
    return listed(_items(value))


def _beside(value: Any, other: Any) -> str:
    """A value as text; of a long list only the items that differ from ``other``."""
    items, others = _items(value), _items(other)
    if len(items) <= _SHOWN or items == others:
        return _text(value)
    known = set(others)
    own = [item for item in items if item not in known]
    if own or len(items) < len(others):
        return f"{_text(own)} and {len(items) - len(own)} in both"
    start = next((i for i, item in enumerate(others) if items[i] != item), len(others))
    return f"from index {start}: {_text(items[start:])}"


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
        row = {"equal": False, **asdict(difference)}
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


def listed(items: Sequence[str]) -> str:
    """Return items, and how many more there are of a long list."""
    more = f" (+{len(items) - _SHOWN})" if len(items) > _SHOWN else ""
    return (" ".join(items[:_SHOWN]) + more) or "-"


def diff_command(
    given: SettingsArgs,
    first: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace or a recorded case.")],
    second: Annotated[Path, typer.Argument(metavar="TRACE", help="The one to compare it with.")],
    as_json: AsJson = False,
) -> int:
    """Show the first step in which two decision traces differ; exit 1 if there is one.

    So it is if requests of a trace ended with an error: what was decided then is no result.
    """
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
    found = has_failed = False
    for name, one, other in pairs:
        for path, trace in ((first, one), (second, other)):
            if failure := trace and trace[-1].get(FAILED):
                has_failed = True
                echo(f"{path}{name and f', {name},'} failed: {failure}", err=as_json)
        difference = first_difference(one, other)
        if difference is not None:
            found = True
            show_difference(difference, name, (str(first), str(second)), (one, other), as_json)
    if not found:
        if as_json:
            echo(json.dumps({"equal": True}))
        else:
            echo(f"equal: {sum(len(one) for _, one, _ in pairs)} steps")
    return int(found or has_failed)
