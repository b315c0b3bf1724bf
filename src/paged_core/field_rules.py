"""Rules for what users submit: each returns a plain copy of a field's value, or refuses it."""

from __future__ import annotations

import reprlib
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import isfinite
from numbers import Integral, Real
from operator import index
from typing import Any

from paged_core.errors import RequestError

Rule = Callable[[str, Any], Any]
"""Takes a field's name and value. Numbers may be NumPy's; a truth value is no number, a string no
list. Any other iterable is a list, which is read once."""

MOST = 2**63 - 1
MOST_ENTRIES = 1 << 22
"""Entries of a list at most, so that one without an end is refused."""


def apply_rules(fields: object, rules: Mapping[str, Rule]) -> None:
    """Replace the fields of a frozen dataclass by what their rules return.

    Raises:
        RequestError: a value is refused.
    """
    for name, rule in rules.items():
        object.__setattr__(fields, name, rule(name, getattr(fields, name)))


def shown(value: object) -> str:
    """Return a value as messages show it: shortened and in one line, whatever it is."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:  # Python writes no integer of more than some thousand digits
        return f"{type(value).__name__} of too many digits"


def refusal(name: str, what: str, value: object) -> RequestError:
    """Return the error that says what the field ``name`` must do or be."""
    return RequestError(f"{name} must {what}, not {shown(value)}")


def whole(least: int, what: str, most: int = MOST) -> Rule:
    """Accept whole numbers of at least ``least``; ``what`` says what a smaller one must do."""

    def rule(name: str, value: Any) -> int:
        if type(value) is not int and not _is_a(Integral, value):
            raise refusal(name, "be a whole number", value)
        number = int(value)
        if number < least:
            raise refusal(name, what, value)
        if number > most:
            raise refusal(name, f"be at most {most}", value)
        return number

    return rule


def real(is_in_range: Callable[[float], bool], what: str) -> Rule:
    """Accept finite numbers in a range; ``what`` says what others must do."""

    def rule(name: str, value: Any) -> float:
        number = finite(name, value)
        if not is_in_range(number):
            raise refusal(name, what, value)
        return number

    return rule


def finite(name: str, value: Any) -> float:
    """Accept numbers that a float can hold."""
    try:
        if (type(value) is float or _is_a(Real, value)) and isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise refusal(name, "be a finite number", value)


def optional(rule: Rule) -> Rule:
    """Accept ``None``, too."""
    return lambda name, value: None if value is None else rule(name, value)


def instance(kind: type, what: str) -> Rule:
    """Accept values of one type."""

    def rule(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise refusal(name, f"be {what}", value)
        return value

    return rule


flag = instance(bool, "True or False")
_string = instance(str, "text")


def text(name: str, value: Any) -> str:
    """Accept text of whole characters, which alone can be sent, counted and written."""
    written: str = _string(name, value)
    try:
        written.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} holds half of a surrogate pair at character {error.start}, which is not valid "
            "Unicode; send whole characters"
        ) from None
    return written


def entries(name: str, value: Any, what: str) -> list[Any]:
    """Copy a list, of ``what``; ``None`` is an empty one."""
    if value is None:
        return []
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | Mapping):
        raise refusal(name, f"be {what}", value)
    try:
        copied = list(islice(value, MOST_ENTRIES + 1))
    except TypeError as error:  # an array of no dimension
        raise refusal(name, f"be {what}", value) from error
    if len(copied) > MOST_ENTRIES:
        raise RequestError(f"{name} has more than {MOST_ENTRIES} entries; shorten it")
    return copied


def listed(is_entry: Callable[[Any], bool], what: str) -> Rule:
    """Accept lists of entries of one kind; ``what`` says what a list must be."""

    def rule(name: str, value: Any) -> tuple[Any, ...]:
        copied = entries(name, value, what)
        if not all(map(is_entry, copied)):
            raise refusal(name, f"be {what}", copied)
        return tuple(copied)

    return rule


_texts = listed(lambda each: isinstance(each, str), "a string or a list of strings")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Accept strings that are not empty, or a single one."""
    copied: tuple[str, ...] = _texts(name, (value,) if isinstance(value, str) else value)
    if not all(copied):
        raise RequestError(f"{name} must not contain an empty string")
    return tuple(text(name, each) for each in copied)


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Accept token ids, of whatever vocabulary."""
    copied = entries(name, value, what := "a list of token ids")
    kinds = set(map(type, copied))
    try:
        whole = copied if kinds == {int} else [*map(index, copied)]
        fitting = array("q", whole)  # in one pass: numbers that fit
    except OverflowError:
        fitting = array("q", [-1])
    except Exception as error:
        raise refusal(name, f"be {what}", copied) from error
    if bool in kinds or (kinds - {int} and any(map(_is_truth, copied))):
        raise refusal(name, f"be {what}", copied)
    if fitting and min(fitting) < 0:
        wrong = next(each for each in copied if not 0 <= each <= MOST)
        raise RequestError(
            f"{name} holds token id {shown(wrong)}, which is outside of any vocabulary"
        )
    return tuple(copied if kinds == {int} else fitting)


def token_sequences(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Accept lists of token ids that are not empty."""
    copied = entries(name, value, "a list of lists of token ids")
    sequences = tuple(token_ids(name, each) for each in copied)
    if not all(sequences):
        raise RequestError(f"{name} must not contain an empty list")
    return sequences


_bias = real(lambda x: abs(x) <= 1e30, "be from -1e30 to 1e30")


def biases(name: str, value: Any) -> dict[int, float]:
    """Accept a mapping of token ids to finite numbers; ``None`` is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refusal(name, "map token ids to numbers", value)
    keys = token_ids(f"{name}, by its keys,", list(value))
    try:
        return dict(zip(keys, [_bias(name, each) for each in value.values()], strict=True))
    except RequestError as error:
        raise RequestError(
            f"{name} must hold finite numbers, from -1e30 to 1e30; to forbid a token, use -100"
        ) from error


def _is_truth(value: Any) -> bool:
    """Return whether a value is a truth value of an array library."""
    return isinstance(value.item() if hasattr(value, "item") else value, bool)


def _is_a(kind: type, value: object) -> bool:
    """Return whether a number is of a kind, as NumPy's are; a truth value is no number."""
    return isinstance(value, kind) and not isinstance(value, bool)
