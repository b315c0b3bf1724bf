"""Typed settings whose component tables come from whatever plugins are installed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import or_
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError

from paged_core.component import AutoSettings, ComponentSettings, Slot
from paged_core.config.errors import explain
from paged_core.config.field_types import is_container, members
from paged_core.config.layers import (
    Entry,
    Layer,
    Source,
    Text,
    from_json,
    from_keywords,
    from_yaml,
    merge,
)
from paged_core.config.memory_size import MemorySize
from paged_core.config.suggest import did_you_mean
from paged_core.errors import PluginError, SettingsError
from paged_core.registry import Registry

Part = SerializeAsAny[ComponentSettings]

_DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu)(:\d+)?")


def _check_device(name: str) -> str:
    """Refuse what is no device's name; whether it is there is for the executor to find out."""
    if not _DEVICE.fullmatch(name):
        raise ValueError(f"no device is called {name!r}; give auto, cpu, cuda, cuda:1 or mps")
    return name


class EngineSettings(BaseModel):
    """What an engine is built from: frozen plain data.

    ``EngineSettings(scheduler="prefill_or_decode", num_blocks=64)`` takes every setting as a
    keyword, and reads neither files nor the environment. A component is given by its name, by a
    table of options (without a ``name``: of the default component), or by its options object.

    An instance can be pickled; the process that reads it needs the same packages, and looks at
    nothing else.

    Raises:
        SettingsError: a setting is unknown or out of range; the message says what to write.
        PluginError: two plugins claim one name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    registry: ClassVar[Registry | None] = None
    """Where the class knows its components from; ``None`` here, see :func:`settings_class`."""

    profile: str | None = Field(None, description="named settings to start from")
    model: str = Field("demo", description="a hub id, a folder, or demo, which comes with us")
    tokenizer: str | None = Field(None, description="null: the model's own")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of weights and cache; auto: what checkpoint and device agree on"
    )
    device: Annotated[str, AfterValidator(_check_device)] = Field(
        "auto", description="auto, cpu, cuda, cuda:1, mps"
    )
    threads: PositiveInt | None = Field(None, description="null: physical cores")
    max_model_len: PositiveInt | None = Field(
        None, description="longest sequence; null: the model's own, lowered to what the pool holds"
    )
    block_size: PositiveInt = Field(16, description="tokens per block")
    num_blocks: PositiveInt | None = Field(
        None, description="null: measured from free memory, bounded by kv_cache_memory"
    )
    kv_cache_memory: MemorySize | None = Field(
        None, description="bytes (2GiB) or a fraction of free memory (0.5)"
    )
    num_host_blocks: NonNegativeInt | None = Field(
        None, description="blocks to swap to; null: as many as on the device if preemption swaps"
    )
    watermark: float = Field(
        0.0, ge=0, lt=1, description="share of the blocks that is kept free on admission"
    )
    seed: NonNegativeInt = Field(0, lt=2**63, description="of requests that bring none")
    deterministic: bool = Field(False, description="the same numbers again, if that costs speed")
    enforce_eager: bool = Field(False, description="no CUDA graphs; none are captured yet")
    trust_remote_code: bool = Field(False, description="run code that comes with a checkpoint")
    allow_pickle: bool = Field(False, description="load weights that can run code when loaded")

    block_allocator: Part
    evictor: Part
    queue_order: Part
    scheduler: Part
    victim: Part
    preemption: Part
    attention: Part
    runner: Part
    executor: Part
    observers: tuple[Part, ...]

    def __new__(cls, **_values: Any) -> Self:
        """Make an instance of the subclass that knows the installed components."""
        known: Any = settings_class(Registry.discover()) if cls is EngineSettings else cls
        instance: Self = super().__new__(known)
        return instance

    def __init__(self, **values: Any) -> None:
        self._fill([from_keywords(values)])

    @classmethod
    def from_layers(cls, layers: Sequence[Layer]) -> tuple[Self, dict[str, Source]]:
        """Merge ``layers``, lowest first; also return where each value (by dotted key) comes from.

        Raises:
            SettingsError, PluginError: as the class does.
        """
        self = cls.__new__(cls)
        return self, self._fill(layers)

    def __eq__(self, other: object) -> bool:
        """Compare the values: every registry, and every process, has a class of its own."""
        return isinstance(other, EngineSettings) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(tuple(dict(self).items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self),)

    def _fill(self, layers: Sequence[Layer]) -> dict[str, Source]:
        registry = type(self).registry or Registry.discover()
        merged = merge(_with_profile(layers, registry), registry.slots)
        fields = type(self).model_fields
        try:
            super().__init__(
                **_values(merged, registry, {k: f.annotation for k, f in fields.items()})
            )
        except ValidationError as error:
            raise SettingsError(explain(error, registry, fields, merged)) from None
        return {
            ".".join(path): merged[path].source if path in merged else Source("default", owner)
            for path, owner in self._leaves()
        }

    def _leaves(self) -> list[tuple[tuple[str, ...], str]]:
        """Return the path of every value, and whose default it would be."""
        leaves: list[tuple[tuple[str, ...], str]] = []
        for key, value in dict(self).items():
            if isinstance(value, ComponentSettings):
                leaves.append(((key, "name"), "paged_core"))
                options = [option for option in type(value).model_fields if option != "name"]
                leaves += [((key, option), f"{key}.{value.name}") for option in options]
            else:
                leaves.append(((key,), "paged_core"))
        return leaves


def settings_class(registry: Registry) -> type[EngineSettings]:
    """Return ``EngineSettings`` with a field per slot, typed by the components that are there.

    It is made once for a registry.

    Raises:
        PluginError: two plugins claim one name, or a slot has the key of another setting.
    """
    if "settings_class" not in registry.memo:
        registry.memo["settings_class"] = _make_class(registry)
    made: type[EngineSettings] = registry.memo["settings_class"]
    return made


def _make_class(registry: Registry) -> type[EngineSettings]:
    registry.refuse_conflicts()
    for key, field in EngineSettings.model_fields.items():
        if field.is_required() and key not in registry.slots:
            raise registry.error(f"no plugin declares the slot {key!r}, which an engine needs")
    fields: dict[str, Any] = {}
    for key, slot in registry.slots.items():
        known = EngineSettings.model_fields.get(key)
        if known and not known.is_required():
            raise PluginError(f"a plugin declares the slot {key!r}, which is a setting already")
        kind = _slot_type(slot, choices(registry, slot))
        default = Field(slot.default, validate_default=True, description=slot.summary)
        fields[key] = (kind, default)
    made = create_model("EngineSettings", __base__=EngineSettings, __module__=__name__, **fields)
    made.registry = registry
    made.__doc__ = "Settings of an engine."
    return made


def choices(registry: Registry, slot: Slot) -> dict[str, type[ComponentSettings]]:
    """Return the options of everything that may be chosen for a slot, by name."""
    found = {name: component.settings for name, component in registry.of(slot.key).items()}
    return {"auto": AutoSettings} | found if slot.auto else found


def _slot_type(slot: Slot, classes: Mapping[str, type[ComponentSettings]]) -> Any:
    union: Any = reduce(or_, classes.values()) if classes else ComponentSettings
    if len(classes) > 1:
        union = Annotated[union, Field(discriminator="name")]
    names: Any = Literal[tuple(classes)] if classes else str
    choose = partial(_choose, slot=slot, names=tuple(classes))
    one = Annotated[union, BeforeValidator(choose, json_schema_input_type=Union[names, union])]  # noqa: UP007
    if slot.many:
        return tuple[one, ...]
    return one if slot.default else one | None


def _choose(value: object, *, slot: Slot, names: Sequence[str]) -> object:
    """Turn shorthand into a table, and refuse a name that no component has."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, (Mapping, ComponentSettings)):
        raise PydanticCustomError("component", "give the name of a component, or a table")
    table = dict(value)
    name = table.setdefault("name", None if slot.many else slot.default)
    if name is None:
        raise PydanticCustomError("component", "the table names no component")
    if name not in names:
        message = f"no {slot.noun} is called {name!r}{did_you_mean(str(name), names)}"
        raise PydanticCustomError("no_component", "{message}", {"message": message})
    return table


def _with_profile(layers: Sequence[Layer], registry: Registry) -> list[Layer]:
    """Put the profile that the highest layer names beneath all of them."""
    chosen = [entry for layer in layers for entry in layer if entry.path == ("profile",)]
    name = chosen[-1].value if chosen else None
    if not isinstance(name, str) or (isinstance(name, Text) and name.is_null):
        return list(layers)
    if name not in registry.profiles:
        where = f" ({chosen[-1].source})" if chosen[-1].source.origin else ""
        known = did_you_mean(name, registry.profiles)
        message = f"profile: no profile is called {str(name)!r}{known}{where}"
        raise SettingsError("\n".join((message, *registry.notes)))
    registry.refuse_conflict(f"profile {str(name)!r}")
    profile = from_yaml(registry.profiles[name].read(), Source("profile", str(name)))
    for entry in profile:
        if entry.path[0] == "profile":
            raise SettingsError(f"{entry.source}: a profile cannot start from another one")
    return [profile, *layers]


def _values(
    merged: Mapping[tuple[str, ...], Entry], registry: Registry, types: Mapping[str, Any]
) -> dict[str, Any]:
    """Return nested values, with typed text read as far as pydantic does not do it."""
    values: dict[str, Any] = {}
    for path in sorted(merged, key=len):
        (key, *rest), entry = path, merged[path]
        table = values.setdefault(key, {}) if rest else values
        if not isinstance(table, dict):
            raise SettingsError(f"{entry.key}: {key!r} is no table ({entry.source})")
        kind = types.get(key)
        if rest and (slot := registry.slots.get(key)):
            name = merged[key, "name"].value if (key, "name") in merged else slot.default
            component = choices(registry, slot).get(name) if isinstance(name, str) else None
            field = component.model_fields.get(rest[0]) if component else None
            kind = field.annotation if field else None
        kinds = set(members(kind))
        if isinstance(entry.value, bool) and bool not in kinds and kinds & {int, float}:
            where = f" ({entry.source})" if str(entry.source) else ""
            word = str(entry.value).lower()
            raise SettingsError(f"{entry.key}: give a number, not {word}{where}")
        option = "__".join(rest) if rest else key
        table[option] = _read(entry, kind) if isinstance(entry.value, Text) else entry.value
    return values


def _read(entry: Entry, kind: Any) -> Any:
    kinds = members(kind)
    if NoneType in kinds and entry.value.is_null:
        return None
    if entry.value[:1] in {"[", "{"} and any(map(is_container, kinds)):
        return from_json(entry)
    return str(entry.value)


def _restore(values: Mapping[str, Any]) -> EngineSettings:
    """Make settings again from values that were checked before they were pickled."""
    more: dict[str, Any] = {
        key: (Any, ...) for key in values if key not in EngineSettings.model_fields
    }
    made = create_model("EngineSettings", __base__=EngineSettings, __module__=__name__, **more)
    return made.model_construct(**values)
