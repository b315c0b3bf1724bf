"""Settings that are varied: ``--vary KEY=A,B``, and the arms of all their combinations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from paged_core.cli.options import Given
from paged_core.config.documents import parse_yaml
from paged_core.config.entry import Entry, Layer, Origin, Text
from paged_core.errors import SettingsError
from paged_plugins.lab.study.arm import Arm
from paged_plugins.lab.study.arms import PlannedArm
from paged_plugins.lab.study.setting_text import settings_text

_OPENING, _CLOSING = "{[(", "}])"
_MOST_ARMS = 1000


@dataclass(frozen=True, slots=True)
class Variation:
    """A setting and the values that it is given in turn; the first is what others are compared
    with.
    """

    key: str
    """Dotted, for an option of a component."""
    texts: Sequence[str]
    values: Sequence[Any]
    """What the texts stand for: a number, a name, a table with options of a component."""

    def entry(self, place: int) -> Entry:
        """Return the setting with its value at ``place``, as if it had been given by option."""
        value = self.values[place]
        is_text = not isinstance(value, (dict, list))
        origin = Origin("cli", f"--vary {self.key}")
        return Entry(
            tuple(self.key.split(".")), Text(self.texts[place]) if is_text else value, origin
        )


def parse_variation(text: str) -> Variation:
    """Return what ``KEY=A,B,...`` says; commas within brackets and quotes separate no values.

    Raises:
        SettingsError: it says less than two values, or one twice, or a value cannot be read.
    """
    key, equals, rest = text.partition("=")
    key = key.strip().replace("-", "_")
    texts = [each.strip() for each in _split(rest)]
    if not key or not equals or not all(texts):
        raise SettingsError(f"--vary {text:.80}: write KEY=A,B, as in --vary evictor=lru,slru")
    if len(texts) < 2:
        raise SettingsError(f"--vary {text:.80}: one value varies nothing; give two or more")
    for number, each in enumerate(texts):
        if each in texts[:number]:
            raise SettingsError(f"--vary {text:.80}: {each!r} is given twice; leave one out")
    return Variation(key, texts, [_value(key, each) for each in texts])


def varied_arms(variations: Sequence[Variation], given: Given, below: Layer) -> list[PlannedArm]:
    """Return an arm for every combination, with its settings.

    The first setting is the axis: within each combination of the others, its values are compared
    with its first one.

    Raises:
        SettingsError: a combination is no valid settings, two are equal, or they are too many.
    """
    axis, *others = variations
    keys = [each.key for each in variations]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise SettingsError(f"--vary {key} is given twice; list all of its values in one")
    if prod(len(each.values) for each in variations) > _MOST_ARMS:
        raise SettingsError(f"--vary makes more than {_MOST_ARMS:,} arms; vary less at once")
    planned = []
    for arm, entries in _arms(axis, others):
        with_arm = replace(given, options=[*given.options, *entries])
        planned.append(PlannedArm(arm, with_arm.resolve(below).settings))
    _refuse_equal(planned)
    return planned


def _arms(axis: Variation, others: Sequence[Variation]) -> Iterator[tuple[Arm, list[Entry]]]:
    for places in product(*(range(len(other.values)) for other in others)):
        around = [(other, place) for other, place in zip(others, places, strict=True)]
        reference = ""
        for place in range(len(axis.values)):
            chosen = [(axis, place), *around]
            changes = {each.key: each.values[number] for each, number in chosen}
            label = settings_text(changes)
            reference = reference or label
            arm = Arm(label=label, changes=changes, axis=axis.key, compared_with=reference)
            yield arm, [each.entry(number) for each, number in chosen]


def _refuse_equal(planned: Sequence[PlannedArm]) -> None:
    known: dict[str, Arm] = {}
    for one in planned:
        other = known.setdefault(one.settings.model_dump_json(), one.arm)
        if other is not one.arm:
            raise SettingsError(
                f"--vary: {other.label!r} and {one.arm.label!r} are the same settings; leave one "
                "out"
            )


def _split(text: str) -> Iterator[str]:
    """Yield what stands between the commas outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "," and depth <= 0:
            yield text[start:place]
            start = place + 1
        else:
            depth += (char in _OPENING) - (char in _CLOSING)
    yield text[start:]


def _value(key: str, text: str) -> Any:
    try:
        value, _ = parse_yaml(text)
    except ValueError as error:
        raise SettingsError(f"--vary {key}: {text!r:.80} cannot be read: {error}") from None
    return value
