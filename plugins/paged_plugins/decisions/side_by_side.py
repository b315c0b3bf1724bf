"""A step of two traces side by side, and the totals of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paged_plugins.decisions.text import SHOWN, listed
from paged_plugins.decisions.trace import DECISIONS, KEYS

Line = Mapping[str, Any]

_ALWAYS = ("scheduled", "running", "waiting", "free_blocks")
_COUNTED = ("cached", "preempted", "swapped_out", "ignored", "finished", "evicted")


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


def totals(sides: tuple[str, str], traces: tuple[Sequence[Line], Sequence[Line]]) -> Iterator[str]:
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
    if len(items) <= SHOWN or items == others:
        return _text(value)
    known = set(others)
    own = [item for item in items if item not in known]
    if own or len(items) < len(others):
        return f"{_text(own)} and {len(items) - len(own)} in both"
    start = next((i for i, item in enumerate(others) if items[i] != item), len(others))
    return f"from index {start}: {_text(items[start:])}"
