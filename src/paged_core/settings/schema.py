"""Typed settings, with a table for every slot, and how they are loaded from all layers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
from pydantic_settings import NoDecode

from paged_core.errors import PluginError, SettingsError, did_you_mean
from paged_core.interfaces.layer import KVCacheDtype
from paged_core.plugins.component import AutoSettings, ComponentSettings, Slot
from paged_core.plugins.registry import Registry
from paged_core.settings import sources
from paged_core.settings.documents import unfit
from paged_core.settings.environment import PREFIX, blocked_plugins
from paged_core.settings.errors import explain
from paged_core.settings.layers import Entry, Layer, Merged, Origin, merge
from paged_core.settings.types import MemorySize
from paged_core.settings.values import Known, nested_values

Part = Annotated[SerializeAsAny[ComponentSettings], NoDecode]
"""Options of a component; in another settings class too, a variable may give just its name."""

_Path = str | os.PathLike[str] | None
_MAX_THREADS = 1024
"""More than a processor has; libraries that are asked for a million end the process."""
_DEVICE = re.compile(r"auto|(cpu|cuda|mps|xpu)(:\d+)?")


def _full_dtype_name(name: object) -> object:
    """Return the name of a dtype for one that vLLM knows, too."""
    return {"half": "float16", "float": "float32"}.get(name, name) if type(name) is str else name


def _check_device(name: str) -> str:
    """Check the form of a device's name; the executor checks that the device exists."""
    if not _DEVICE.fullmatch(name):
        raise ValueError(f"no device is called {name!r}; give auto, cpu, cuda, cuda:1 or mps")
    return name


class LayeredSettings(BaseModel):
    """Frozen settings that are merged from layers, with a table for each slot among the fields.

    A subclass has a field per setting, and one as :func:`slot_field` makes it for each slot.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    registry: ClassVar[Registry | None] = None
    """The registry of the components to choose from; ``None``: what is installed."""

    def __init__(self, **values: Any) -> None:
        self._fill([_from_keywords(values)])

    @classmethod
    def from_layers(cls, layers: Sequence[Layer]) -> tuple[Self, dict[str, Origin]]:
        """Merge ``layers``, lowest first, and return where each value is written, by dotted key."""
        self = cls.__new__(cls)
        return self, self._fill(layers)

    def _fill(self, layers: Sequence[Layer]) -> dict[str, Origin]:
        registry, fields = type(self).registry or Registry.discover(), type(self).model_fields
        slots = {key: slot for key, slot in registry.slots.items() if key in fields}
        known = Known(fields, slots, {key: choices(registry, slot) for key, slot in slots.items()})
        if "profile" in fields:
            layers = _with_profile(layers, registry)
        merged = merge(layers, slots)
        try:
            super().__init__(**nested_values(merged, known))
        except ValidationError as error:
            raise SettingsError(explain(error, known, merged, registry.notes)) from None
        return self._origins(merged)

    def _origins(self, merged: Merged) -> dict[str, Origin]:
        """Return where each value is written, or whose default it is, by dotted key."""
        origins = {}
        for key, value in dict(self).items():
            options = type(value).model_fields if isinstance(value, ComponentSettings) else (None,)
            for option in options:
                path = (key, option) if option else (key,)
                owner = "paged_core" if option in {None, "name"} else f"{key}.{value.name}"
                found = merged.get(path)
                name = ".".join(path)
                origins[name] = found.origin if found else Origin("default", owner)
                if problem := _unfit(getattr(value, option) if option else value):
                    raise SettingsError(f"{name}: {problem}{origins[name].suffix}")
        return origins


class EngineSettings(LayeredSettings):
    """Settings that an engine is built from, as frozen plain data.

    ``EngineSettings(scheduler="prefill_or_decode", num_blocks=64)`` takes every setting as a
    keyword. A component is given by its name, by a table of options (without a ``name``: of the
    default component), or by its options object. Neither files nor the environment are read, not
    even by a process that unpickles an instance; that needs the same packages.

    Raises:
        SettingsError: a setting is unknown or out of range; the message says what to write.
        PluginError: two plugins claim one name.
    """

    profile: str | None = Field(None, description="named settings to start from")
    model: str = Field("demo", description="a hub id, a folder, a GGUF file, or demo")
    tokenizer: str | None = Field(None, description="null: the model's own")
    generation_config: Literal["auto", "none"] = Field(
        "auto",
        description="sampling parameters that requests leave out; auto: those of the checkpoint's "
        "generation_config.json; none: the API's own",
    )
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], BeforeValidator(_full_dtype_name)
    ] = Field("auto", description="of weights and cache; auto: what checkpoint and device agree on")
    device: Annotated[str, AfterValidator(_check_device)] = Field(
        "auto", description="auto, cpu, cuda, cuda:1, mps"
    )
    threads: Annotated[PositiveInt, Field(le=_MAX_THREADS)] | None = Field(
        None, description="null: physical cores"
    )
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
        0.0, ge=0, lt=1, description="fraction of the blocks kept free on admission"
    )
    checks: Literal["basic", "full"] = Field(
        "basic", description="full: references to blocks are counted beside the allocator's"
    )
    seed: NonNegativeInt = Field(0, lt=2**63, description="of requests that have none")
    deterministic: bool = Field(
        False, description="tokens do not depend, bit for bit, on what else is in a batch"
    )
    async_scheduling: bool | Literal["auto"] = Field(
        "auto",
        description="plan a step while the previous one runs; auto: if the executor gains by it",
    )
    kv_cache_dtype: KVCacheDtype = Field(
        "auto",
        description="of keys and values in the cache; auto: dtype; fp8_e4m3, int8: half the bytes",
    )
    kv_cache: bool = Field(
        True, description="off: every step computes all tokens of its sequences again"
    )
    enforce_eager: bool = Field(False, description="no CUDA graphs")
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
    communicator: Part
    grammar: Part
    observers: tuple[Part, ...]

    def __new__(cls, **_values: Any) -> Self:
        """Make an instance of the subclass that has the installed components."""
        made: Any = settings_class(Registry.discover()) if cls is EngineSettings else cls
        self: Self = super().__new__(made)
        return self

    def __init__(self, **values: Any) -> None:  # else mypy wants a value for each component
        super().__init__(**values)

    def __eq__(self, other: object) -> bool:
        """Compare values; classes differ between registries and processes."""
        return isinstance(other, EngineSettings) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(tuple(dict(self).items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self),)


def _unfit(value: object) -> str | None:
    """Say why a value of the right type is refused, whichever setting it is for."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return "the number is too large"
    return unfit(str(value) if isinstance(value, Path) else value)


def settings_class(registry: Registry) -> type[EngineSettings]:
    """Return ``EngineSettings`` with a field per slot, made once per registry.

    Raises:
        PluginError: two plugins claim one name, or a slot has the key of another setting.
    """
    made: type[EngineSettings] = registry.memo.get("settings_class") or _make_class(registry)
    registry.memo["settings_class"] = made
    return made


def _make_class(registry: Registry) -> type[EngineSettings]:
    for what in registry.conflicts:
        if not what.startswith(("profile ", "command ")):  # checked when one is used
            registry.refuse_conflict(what)
    for key, field in EngineSettings.model_fields.items():
        if field.is_required() and key not in registry.slots:
            raise registry.error(f"no plugin declares the slot {key!r}, which an engine needs")
    fields: dict[str, Any] = {}
    for key, slot in registry.slots.items():
        known = EngineSettings.model_fields.get(key)
        if known and not known.is_required():
            raise PluginError(f"a plugin declares the slot {key!r}, which is a setting already")
        fields[key] = slot_field(registry, slot)
    made = create_model("EngineSettings", __base__=EngineSettings, __module__=__name__, **fields)
    made.registry, made.__doc__ = registry, "Settings of an engine."
    return made


def choices(registry: Registry, slot: Slot) -> dict[str, type[ComponentSettings]]:
    """Return the options of each component that may be chosen for a slot, by name."""
    found = {name: component.settings for name, component in registry.of(slot.key).items()}
    return {"auto": AutoSettings} | found if slot.auto else found


def slot_field(registry: Registry, slot: Slot) -> tuple[Any, Any]:
    """Return type and default of a setting that chooses among the components of a slot."""
    default = Field(slot.default, validate_default=True, description=slot.summary)
    return _slot_type(slot, choices(registry, slot)), default


def _slot_type(slot: Slot, classes: Mapping[str, type[ComponentSettings]]) -> Any:
    union: Any = Union[tuple(classes.values())] if classes else ComponentSettings  # noqa: UP007
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


def _from_keywords(values: Mapping[str, Any]) -> Layer:
    return [Entry((key,), value, Origin("python", "")) for key, value in values.items()]


def _with_profile(layers: Sequence[Layer], registry: Registry) -> list[Layer]:
    """Return the layers above the profile that the highest of them names, if any does."""
    named = [entry for layer in layers for entry in layer if entry.path == ("profile",)]
    if not named or named[-1].is_null or not isinstance(named[-1].value, str):
        return list(layers)
    name, origin = named[-1].value, named[-1].origin
    if name not in registry.profiles:
        known = did_you_mean(name, registry.profiles)
        message = f"profile: no profile is called {name!r:.80}{known}{origin.suffix}"
        raise SettingsError("\n".join((message, *registry.notes)))
    registry.refuse_conflict(f"profile {name!r}")
    profile = sources.from_yaml(registry.profiles[name].read(), Origin("profile", str(name)))
    for entry in profile:
        if entry.path[0] == "profile":
            raise SettingsError(f"{entry.origin}: a profile cannot start from another one")
    return [profile, *layers]


@dataclass(frozen=True)
class Resolved:
    """Settings, where each value is written, and the registry that has their components."""

    settings: EngineSettings
    origins: Mapping[str, Origin]
    """By dotted key: ``scheduler.max_num_seqs``; a list such as ``observers`` is one value."""
    registry: Registry


def load_settings(
    registry: Registry | None = None,
    *,
    config: _Path = None,
    env_file: _Path = None,
    secrets_dir: _Path = None,
    options: Layer = (),
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    below: Layer = (),
) -> Resolved:
    """Load settings from all layers and check them.

    Highest first: ``overrides`` (keywords), ``options`` (of the command line), the environment, the
    env file, the secrets directory, the settings file (YAML or TOML), the profile, defaults.

    Args:
        registry: ``None``: what is installed, less what ``PAGED_CORE_BLOCK_PLUGIN`` names.
        config: settings file; ``None``: what ``PAGED_CORE_CONFIG`` names, if set.
        env_file: ``None``: what ``PAGED_CORE_ENV_FILE`` names, if set.
        secrets_dir: ``None``: what ``PAGED_CORE_SECRETS_DIR`` names, if set.
        below: settings that the settings file and all above it override.

    Raises:
        SettingsError: a setting is wrong, or a file cannot be read; the message says which, where
            it is written and what to do.
        PluginError: two plugins claim one name.
    """
    if registry is None:
        registry = Registry.discover(block=blocked_plugins(environ))
    made = settings_class(registry)
    keys = made.model_fields
    from_secrets = partial(sources.from_secrets_dir, keys=keys)
    from_env = partial(sources.from_env_file, keys=keys)
    layers = [
        below,
        _read("settings file", "CONFIG", config, environ, sources.from_file),
        _read("secrets directory", "SECRETS_DIR", secrets_dir, environ, from_secrets),
        _read("env file", "ENV_FILE", env_file, environ, from_env),
        sources.from_environment(environ, keys),
        options,
        _from_keywords(overrides or {}),
    ]
    settings, origins = made.from_layers(layers)
    return Resolved(settings, origins, registry)


def _read(
    what: str, name: str, given: _Path, environ: Mapping[str, str], read: Callable[[Path], Layer]
) -> Layer:
    """Read what was given, or else what the variable called ``name`` names, if anything."""
    path = given if given is not None else environ.get(PREFIX + name) or None
    if path is None:
        return ()
    try:
        return read(Path(path).expanduser())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        named_by = f" ({PREFIX}{name})" if given is None else ""
        raise SettingsError(f"cannot read {what} {path}: {reason}{named_by}") from None


def _restore(values: Mapping[str, Any]) -> EngineSettings:
    """Make settings again from values that were checked before they were pickled."""
    more: Any = {key: (Any, ...) for key in values if key not in EngineSettings.model_fields}
    made = create_model("EngineSettings", __base__=EngineSettings, __module__=__name__, **more)
    return made.model_construct(**values)
