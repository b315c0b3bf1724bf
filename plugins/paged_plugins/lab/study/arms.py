"""The arms of a study, from a base and axes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

from paged_core.config.entry import Entry, Layer, Origin
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_core.settings import EngineSettings, settings_class
from paged_plugins.lab.study.arm import BASE, Arm
from paged_plugins.lab.study.setting_text import settings_text


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
) -> list[PlannedArm]:
    """Return the base and the arms around it.

    Args:
        base: layers of settings, lowest first.
        axes: values by setting; the key may be dotted (``scheduler.max_num_seqs``), a value may be
            a table with options of a component. The base's own values make no arm.
        product: all combinations; otherwise one axis is varied at a time.
        advance: called when the settings of one were checked.

    Raises:
        SettingsError: the settings of an arm are invalid; the message names the axis.
    """

    def settings(changes: Mapping[str, Any]) -> EngineSettings:
        advance()
        return _settings(base, registry, changes)

    own = settings({})
    single = [
        (axis, value, settings({axis: value})) for axis, each in axes.items() for value in each
    ]
    held = {axis: value for axis, value, made in single if made == own}
    varied = [one for one in single if one[2] != own]
    if product:
        values = {axis: [value for name, value, _ in varied if name == axis] for axis in axes}
        arms = ((change, settings(change)) for change in _combined(values, held))
    else:
        arms = (({axis: value}, made) for axis, value, made in varied)
    planned = {_identity(own): PlannedArm(Arm(label=BASE, held=held), own)}
    labels = {BASE}
    for change, changed in arms:
        made = PlannedArm(_arm(change), changed)
        if planned.setdefault(_identity(made.settings), made) is not made:
            continue
        if made.arm.label in labels:
            raise SettingsError(f"two arms would be called {made.arm.label!r}; write them apart")
        labels.add(made.arm.label)
    return list(planned.values())


def layer(settings: Mapping[str, Any], where: str = "") -> Layer:
    """Return settings by dotted key as a layer.

    Args:
        where: what messages about them end with.

    Raises:
        SettingsError: a key has more than two parts.
    """
    for key in settings:
        if key.count(".") > 1 or not all(key.split(".")):
            raise SettingsError(f"{key!r} is no setting; write SETTING or COMPONENT.OPTION")
    return [
        Entry(tuple(key.split(".")), value, Origin("yaml", where))
        for key, value in settings.items()
    ]


def _identity(settings: EngineSettings) -> str:
    return settings.model_dump_json()


def _settings(
    base: Sequence[Layer], registry: Registry, changes: Mapping[str, Any]
) -> EngineSettings:
    where = f"arm {settings_text(changes)}" if changes else "base"
    made, _ = settings_class(registry).from_layers([*base, layer(changes, where)])
    return made


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


def _arm(changes: Mapping[str, Any]) -> Arm:
    axis = next(iter(changes)) if len(changes) == 1 else None
    return Arm(label=settings_text(changes), changes=dict(changes), axis=axis)
