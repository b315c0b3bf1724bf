"""Checks that a policy does not change the groups that it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paged_core.sequence import SequenceGroup


@contextmanager
def untouched(groups: Iterable[SequenceGroup]) -> Iterator[None]:
    """Check that no field of ``groups``, their sequences or block tables changes in the block.

    Content keys are left out: a look-up in the cache computes and keeps them.

    Raises:
        AssertionError: a field has changed; the message names it.
    """
    watched = list(groups)
    before = _facts(watched)
    yield
    after = _facts(watched)
    for field, value in before.items():
        assert after.get(field) == value, f"it changed {field} from {value} to {after.get(field)}"
    assert len(after) == len(before), f"it added {sorted(after.keys() - before.keys())}"


def _facts(groups: Iterable[SequenceGroup]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for group in groups:
        name = f"group {group.id!r}"
        _add(facts, name, group)
        for sequence in group.sequences:
            _add(facts, f"{name}.sequences[{sequence.index}]", sequence)
            _add(facts, f"{name}.sequences[{sequence.index}].table", sequence.table)
    return facts


def _add(facts: dict[str, Any], name: str, subject: object) -> None:
    for kind in type(subject).__mro__:
        for field in getattr(kind, "__slots__", ()):
            if field != "keys":
                facts[f"{name}.{field}"] = _frozen(getattr(subject, field))


def _frozen(value: Any) -> Any:
    """The present value of a field; containers are copied."""
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    return dict(value) if isinstance(value, dict) else value
