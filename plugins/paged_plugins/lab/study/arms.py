"""The arms of a study: a base and what is varied around it, with the settings of each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as combinations
from math import prod
from pathlib import Path
from typing import Any

from paged_core.cli.options import SettingsArgs
from paged_core.errors import SettingsError
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.settings.documents import parse_yaml
from paged_core.settings.layers import Entry, Layer, Origin, Text
from paged_core.settings.schema import EngineSettings, settings_class


class LabelledTable(dict[str, Any]):
    """Options of a component, by the label of which arms are called."""

    def __init__(self, label: str, table: Mapping[str, Any]) -> None:
        super().__init__(table)
        self.label = label

    def __reduce__(self) -> tuple[Any, ...]:
        return LabelledTable, (self.label, dict(self))


def setting_text(value: Any) -> str:
    """Return the value of a setting: a name, a number, a table ``{name: slru, share: 0.5}``, or the
    label of one.
    """
    if isinstance(value, LabelledTable):
        return value.label
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {setting_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(setting_text, value)) + "]"
    return str(value)


def settings_text(changes: Mapping[str, Any]) -> str:
    """Return settings as ``key=value``, comma-separated."""
    return ", ".join(f"{key}={setting_text(value)}" for key, value in changes.items())


BASE = "base"
"""Label of the arm that the others are compared with."""


OWN = "paged_core"
"""Label of this engine, where other engines are arms beside it."""
LineOf = Callable[..., int | None]
"""``line(*path)``: where in a file that is; ``None``: it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One engine under study."""

    label: str
    """``base``, or what it changes: ``victim=fewest_computed``, ``evictor=slru num_blocks=128``."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key that differ from those of the base."""
    held: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key that it shares with the base, where other arms differ in them."""
    axis: str | None = None
    """The setting that it varies; ``None``: the base, or several are varied at once."""
    compared_with: str = BASE
    """Label of the arm that it is compared with."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the base for each setting that other arms change."""

    @property
    def title(self) -> str:
        """Title for a reader: its settings, of the base too."""
        return settings_text(self.values) or self.label


@dataclass(frozen=True, slots=True)
class PlannedArm:
    """An arm and the settings of its engine."""

    arm: Arm
    settings: EngineSettings


def plan_arms(
    base: Sequence[Layer],
    axes: Mapping[str, Sequence[Any]],
    registry: Registry,
    *,
    product: bool = False,
    advance: Callable[[], None] = lambda: None,
    line: LineOf = lambda *_: None,
) -> list[PlannedArm]:
    """Return the base and the arms around it.

    Args:
        base: layers of settings, lowest first.
        axes: values by setting; the key may be dotted (``scheduler.max_num_seqs``), a value may be
            a table with options of a component. The base's own values make no arm.
        product: all combinations; otherwise one axis is varied at a time.
        advance: called when the settings of one were checked.
        line: of a value of ``axes`` in the file that they are of.

    Raises:
        SettingsError: the settings of an arm are invalid; the message names the axis.
    """

    def settings(changes: Mapping[str, Any], place: int | None = None) -> EngineSettings:
        advance()
        where = f"arm {settings_text(changes)}" if changes else "base"
        own = layer(changes, where, lambda key: line("axes", key, place))
        made, _ = settings_class(registry).from_layers([*base, own])
        return made

    own = settings({})
    single = [
        (axis, value, settings({axis: value}, place))
        for axis, each in axes.items()
        for place, value in enumerate(each)
    ]
    for number, (key, value, made) in enumerate(single):
        for other, before, known in single[:number]:
            if key == other and made == known:
                raise SettingsError(
                    f"axes: {key}={setting_text(before)} and {key}={setting_text(value)} are the "
                    "same settings; leave one out"
                )
    held = {axis: value for axis, value, made in single if made == own}
    varied = [one for one in single if one[2] != own]
    if product:
        values = {axis: [value for name, value, _ in varied if name == axis] for axis in axes}
        arms = ((change, settings(change)) for change in _combined(values, held))
    else:
        arms = (({axis: value}, made) for axis, value, made in varied)
    values = {axis: held[axis] if axis in held else _own_value(own, axis) for axis in axes}
    planned = [PlannedArm(Arm(label=BASE, held=held, values=values), own)]
    by_settings, by_label = {own.model_dump_json()}, {BASE}
    for change, made in arms:
        if (identity := made.model_dump_json()) in by_settings:
            continue
        label, axis = settings_text(change), next(iter(change)) if len(change) == 1 else None
        if label in by_label:
            raise SettingsError(f"two arms would be called {label!r}; write them apart")
        by_settings.add(identity)
        by_label.add(label)
        planned.append(PlannedArm(Arm(label=label, changes=change, axis=axis), made))
    return planned


def _own_value(settings: EngineSettings, key: str) -> Any:
    """Return what settings have under a dotted key, as it is written: a component by its name."""
    name, _, option = key.partition(".")
    value = dict(settings)[name]
    if option:
        value = getattr(value, option, None)
    elif isinstance(value, ComponentSettings):
        value = value.name
    return str(value) if isinstance(value, Path) else value


def layer(settings: Mapping[str, Any], where: str = "", line: LineOf = lambda _: None) -> Layer:
    """Return settings by dotted key as a layer.

    Args:
        where: what messages about them end with; ``line``: of a key there.

    Raises:
        SettingsError: a key has more than two parts.
    """
    for key in settings:
        if key.count(".") > 1 or not all(key.split(".")):
            raise SettingsError(f"{key!r} is no setting; write SETTING or COMPONENT.OPTION")
    return [
        Entry(tuple(key.split(".")), value, Origin("yaml", where, line(key)))
        for key, value in settings.items()
    ]


def _combined(
    values: Mapping[str, Sequence[Any]], held: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield the changes of every combination but the base's.

    Args:
        values: by axis, those that the base does not have.
        held: the axes that have the base's value too.
    """
    choices = [
        [*([{}] if axis in held else []), *({axis: value} for value in each)]
        for axis, each in values.items()
    ]
    for chosen in combinations(*choices):
        change = {axis: value for one in chosen for axis, value in one.items()}
        if change:
            yield change


def block_size_note(arms: Iterable[EngineSettings]) -> str | None:
    """Return what to say where blocks of several sizes make caches of several sizes; ``None``:
    nothing.
    """
    block_sizes: defaultdict[int, set[int]] = defaultdict(set)
    for settings in arms:
        if settings.num_blocks is not None:
            block_sizes[settings.num_blocks].add(settings.block_size)
    for num_blocks, sizes in block_sizes.items():
        if len(sizes) > 1:
            caches = ", ".join(f"{num_blocks * size:,} at {size}" for size in sorted(sizes))
            return (
                f"note: block_size changes the size of the cache, as num_blocks is {num_blocks:,} "
                f"everywhere (tokens: {caches}); to keep it, give kv_cache_memory instead"
            )
    return None


_OPENING, _CLOSING = "{[(", "}])"
_MOST_ARMS = 1000
_LABELLED = re.compile(r"(\w[\w .+-]*):\s*(\{.*\})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Variation:
    """A setting and the values that it is given in turn; the first is what others are compared
    with.
    """

    key: str
    """Dotted, for an option of a component."""
    values: Sequence[Any]
    """Numbers, names, tables with options of a component."""
    entries: Sequence[Entry]
    """The setting with each value, as if it had been given by option."""


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
        raise SettingsError(f"--vary {key}: one value varies nothing; give two or more")
    names = [named[1] if (named := _LABELLED.fullmatch(each)) else each for each in texts]
    for number, each in enumerate(names):
        if each in names[:number]:
            raise SettingsError(f"--vary {key}: {each!r} is given twice; leave one out")
    path, origin = tuple(key.split(".")), Origin("cli", f"--vary {key}")
    values = [_value(key, each) for each in texts]
    given = [
        value if isinstance(value, (dict, list)) else Text(value if type(value) is str else each)
        for value, each in zip(values, texts, strict=True)
    ]
    return Variation(key, values, [Entry(path, each, origin) for each in given])


def varied_arms(
    variations: Sequence[Variation], given: SettingsArgs, below: Layer
) -> list[PlannedArm]:
    """Return an arm for every combination, with its settings.

    The first setting is the axis: within each combination of the others, its values are compared
    with its first one. Without any there is one arm, this engine.

    Raises:
        SettingsError: a combination is no valid settings, two are equal, or they are too many.
    """
    if not variations:
        settings = given.resolve(below).settings
        return [PlannedArm(Arm(label=OWN, compared_with=OWN), settings)]
    axis, *others = variations
    keys = [each.key for each in variations]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise SettingsError(f"--vary {key} is given twice; list all of its values in one")
    if prod(len(each.values) for each in variations) > _MOST_ARMS:
        raise SettingsError(f"--vary makes more than {_MOST_ARMS:,} arms; vary less at once")
    planned: dict[str, PlannedArm] = {}
    for around in combinations(*(range(len(other.values)) for other in others)):
        reference = ""
        for place in range(len(axis.values)):
            chosen = list(zip(variations, (place, *around), strict=True))
            changes = {each.key: each.values[number] for each, number in chosen}
            label = settings_text(changes)
            reference = reference or label
            entries = [each.entries[number] for each, number in chosen]
            settings = replace(given, options=[*given.options, *entries]).resolve(below).settings
            arm = Arm(label=label, changes=changes, axis=axis.key, compared_with=reference)
            made = PlannedArm(arm, settings)
            known = planned.setdefault(settings.model_dump_json(), made)
            if known is not made:
                raise SettingsError(
                    f"--vary: {known.arm.label!r} and {label!r} are the same settings; leave one "
                    "out"
                )
    return list(planned.values())


def _split(text: str) -> Iterator[str]:
    """Yield what stands between the commas outside of brackets and quotes.

    Raises:
        SettingsError: one of these is not closed.
    """
    opened: list[str] = []
    quote, start = "", 0
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "," and not opened:
            yield text[start:place]
            start = place + 1
        elif char in _OPENING:
            opened.append(char)
        elif char in _CLOSING and opened:
            opened.pop()
    if quote or opened:
        raise SettingsError(
            f"--vary: {quote or opened[-1]} is not closed in {text:.80}; close and quote it, as "
            "in --vary 'evictor=lru,{name: slru}'"
        )
    yield text[start:]


def _value(key: str, text: str) -> Any:
    if named := _LABELLED.fullmatch(text):
        return LabelledTable(named[1], _value(key, named[2]))
    try:
        value, _ = parse_yaml(text)
    except ValueError as error:
        raise SettingsError(f"--vary {key}: {text!r:.80} cannot be read: {error}") from None
    return value
