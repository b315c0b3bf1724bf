"""Options of components, small and large ones, as their settings classes permit them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from itertools import combinations, cycle
from math import inf
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from paged_core.plugins.component import ComponentSettings

_KNOWN: Mapping[str, Sequence[Any]] = {
    "max_num_seqs": (1, *range(3, 9)),
    "max_num_batched_tokens": (1, *range(3, 41)),
    "chunked_prefill": [True, True, True, False],
    "long_prefill_token_threshold": [0, 0, 2, 5],
    "delay_factor": [0.0, 0.0, 0.5],
    "num_levels": [1, 3, 8],
    "first_quantum": [2, 4, 32],
    "promote_after": [None, 3.0, 20.0],
}
"""Options of which it is known what puts the small engines of the kit to the test."""
_LEAST: Mapping[type, Sequence[Any]] = {int: (0, -1), float: (0.0, -1.0, inf), str: ("",)}
"""Values that an option of a type has, and each item of one that holds several, unless its bounds
refuse them; and infinity, unless that is refused."""


def component_options(
    kind: type[ComponentSettings], fixed: Mapping[str, Any] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Tables for one component: small and large numbers within their bounds, and all choices.

    Options of other types, such as paths, keep their defaults.

    Args:
        fixed: options that are not drawn.
    """
    chosen = {name: st.sampled_from(values) for name, values in _values(kind).items()}
    for name, value in {"name": kind.model_fields["name"].default, **(fixed or {})}.items():
        chosen[name] = st.just(value)
    return st.fixed_dictionaries(chosen)


def other_options(
    kind: type[ComponentSettings], fixed: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Tables that differ in what is not ``fixed``: all smallest; all in the middle; five in which
    each is one of its two smallest or three largest values, so that of any two options either is
    small beside the other; and in one option each, which is 0, negative, infinite or an empty text,
    or, of one that is ``fixed``, the smallest or the largest.

    Those that the settings class refuses are left out.
    """
    every, fields = _values(kind), kind.model_fields
    values = {name: each for name, each in every.items() if name not in fixed}
    seen = [kind(**fixed)]
    rows = [dict[str, Any]() for _ in range(5)]
    for (name, each), larger in zip(values.items(), cycle(combinations(range(5), 3))):
        half = len(each) // 2
        small, large = cycle(each[: max(1, half)][:2]), cycle(each[half:][-3:])
        for number, row in enumerate(rows):
            row[name] = next(large if number in larger else small)
    middle = {name: _middle(fields[name]) for name in values}
    varied = [
        {name: each[0] for name, each in values.items()},
        {name: each for name, each in middle.items() if each is not None},
        *rows,
    ]
    varied += [
        {name: each}
        for name, field in fields.items()
        if name not in (*fixed, "name")
        for inner, _ in _alternatives(field.annotation, field.metadata)
        for each in _least(inner)
        if each not in values.get(name, ())
    ]
    varied += [{name: every[name][at]} for name in fixed if name in every for at in (0, -1)]
    varied += [{name: most} for name in every if (most := _most(fields[name])) < inf]
    for more in varied:
        table = {**fixed, **more}
        try:
            made = kind(**table)
        except ValidationError:
            continue
        if made not in seen:
            seen.append(made)
            yield table


def each_option(
    kind: type[ComponentSettings], fixed: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Tables that differ in one option each, small and large, of those that are not ``fixed``."""
    for name, values in _values(kind).items():
        most = _most(kind.model_fields[name])
        ends = [most] if most < inf else []
        for value in [*values, *ends] if name not in fixed else ():
            with suppress(ValidationError):
                kind(**(table := {**fixed, name: value}))
                yield table


def unbounded(kind: type[ComponentSettings]) -> Iterator[str]:
    """Names of the options that are numbers, which neither a bound from below nor a validator
    refuses."""
    of_class = kind.__pydantic_decorators__
    checked = {name for each in of_class.field_validators.values() for name in each.info.fields}
    for name, field in kind.model_fields.items():
        if name in checked or of_class.model_validators:
            continue
        for inner, bounds in _alternatives(field.annotation, field.metadata):
            is_bound = any(hasattr(each, at) for each in bounds for at in ("ge", "gt", "func"))
            if inner in (int, float) and not is_bound:
                yield name


def _least(kind: Any) -> Iterator[Any]:
    """Values of a type that are as small as can be, and containers of them."""
    yield from _LEAST.get(kind, ())
    of, items = get_origin(kind), [each for each in get_args(kind) if each is not ...]
    if isinstance(of, type) and issubclass(of, Collection):
        held = [each for inner, _ in _alternatives(items[-1], ()) for each in _least(inner)]
        for some in ([], *([each] for each in held)):
            yield dict(zip([""], some, strict=False)) if issubclass(of, Mapping) else some


@cache
def _values(kind: type[ComponentSettings]) -> Mapping[str, Sequence[Any]]:
    """Values to try of each option that can be varied."""
    found: dict[str, Sequence[Any]] = {}
    fields = kind.model_fields
    for name, field in fields.items():
        known = _KNOWN.get(name)
        if name == "max_num_batched_tokens" and "chunked_prefill" not in fields:
            known = range(24, 65)  # whole prompts must fit
        values = _values_of(field) if known is None else known
        if name != "name" and values:
            found[name] = values
    return found


def _values_of(field: FieldInfo) -> list[Any]:
    values: list[Any] = []
    for kind, bounds in _alternatives(field.annotation, field.metadata):
        if kind is type(None):
            values.append(None)
        elif kind is bool:
            values += [False, True]
        elif get_origin(kind) is Literal:
            values += get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, Enum):
            values += kind
        elif kind in (int, float):
            values += _numbers(kind, bounds, field.default)
    return values if values != [None] else []


def _alternatives(kind: Any, bounds: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
    """The types that an annotation permits, each with what bounds it."""
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        yield from _alternatives(inner, [*bounds, *more])
    elif get_origin(kind) in (Union, UnionType):
        for each in get_args(kind):
            yield from _alternatives(each, bounds)
    else:
        yield kind, bounds


def _most(field: FieldInfo) -> float:
    """Return the greatest number that an option may be; infinity: nothing bounds it."""
    found = _alternatives(field.annotation, field.metadata)
    numbers = ((kind, bounds) for kind, bounds in found if kind in (int, float))
    return max(
        (_upper(bounds, _unit(kind, field.default)) for kind, bounds in numbers), default=inf
    )


def _middle(field: FieldInfo) -> Any:
    """Return a number half way between the bounds of an option; ``None``: it has not both."""
    for kind, bounds in _alternatives(field.annotation, field.metadata):
        least, most = _lower(bounds, 0), _upper(bounds, 0)
        if kind in (int, float) and -inf < least and most < inf:
            return kind((least + most) / 2)
    return None


def _unit(kind: Any, usual: Any) -> float:
    """Return a step from a number to one beside it."""
    size = abs(usual) if isinstance(usual, int | float) else 0
    return 1 if kind is int else (size or 1) / 10


def _lower(bounds: Sequence[Any], unit: float) -> float:
    """Return the least number within bounds."""
    kinds = (("ge", 0), ("gt", unit))
    return max(
        (getattr(each, name, -inf) + far for each in bounds for name, far in kinds), default=-inf
    )


def _upper(bounds: Sequence[Any], unit: float) -> float:
    """Return the greatest number within bounds."""
    kinds = (("le", 0), ("lt", unit))
    return min(
        (getattr(each, name, inf) - far for each in bounds for name, far in kinds), default=inf
    )


def _numbers(kind: Any, bounds: Sequence[Any], usual: Any) -> list[Any]:
    """Small and large numbers within bounds; positive ones where nothing bounds them from below."""
    usual = usual if isinstance(usual, int | float) else 8
    unit = _unit(kind, usual)
    least, most = _lower(bounds, unit), _upper(bounds, unit)
    first = min(unit, usual) if least == -inf else least
    wanted = [first, first + unit, first + 2 * unit, usual, 2 * usual + unit]
    wanted.append(min(most, max(1000 * min(1000, max(1, abs(usual))), 2 * usual + unit)))
    return sorted({kind(each) for each in wanted if least <= each <= most})
