"""Settings of the policies inside vLLM: a file, the environment, vLLM's arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from paged_core.errors import SettingsError, did_you_mean
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.settings import sources
from paged_core.settings.environment import blocked_plugins
from paged_core.settings.layers import Layer, Origin
from paged_core.settings.schema import EngineSettings, LayeredSettings, slot_field
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, create_model

PREFIX = "PAGED_CORE_VLLM__"
CONFIG = "PAGED_CORE_VLLM_CONFIG"
ARGUMENT = "paged_core"
"""Key of the settings in vLLM's ``--additional-config``."""
CARRIED = ("queue_order", "victim", "evictor")
"""Slots whose components decide inside vLLM."""
STAYS = {
    "scheduler": ("token_budget", "vLLM's own step is planned by vLLM"),
    "preemption": ("recompute", "vLLM has no swapping, and admits before it knows the length"),
    "block_allocator": (
        "hash_cached",
        "vLLM hands out its blocks; --enable-prefix-caching chooses",
    ),
}
"""Slots whose decision stays with vLLM: the component that decides as it does, and why."""


class RecordSettings(BaseModel):
    """Options of a recording."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path = Field(description="the file of the recording")
    tokens: bool = Field(
        False, description="token ids of prompts, instead of keys of their content"
    )
    max_bytes: PositiveInt = Field(2**28, description="size from which on a new file is begun")
    files: PositiveInt = Field(4, description="files kept, the newest ones")


def _path_alone(value: object) -> object:
    return {"path": value} if isinstance(value, (str, Path)) else value


class PolicySettings(LayeredSettings):
    """Settings beside the components; :func:`settings_class` adds a field for each slot."""

    queue_order: ComponentSettings
    victim: ComponentSettings
    evictor: ComponentSettings
    record: Annotated[RecordSettings | None, BeforeValidator(_path_alone)] = Field(
        None, description="a file, or a table: records requests and decisions"
    )
    strict: bool = Field(
        False, description="end the engine when a component raises; off: vLLM's own rule decides"
    )
    replace_lru: bool = Field(
        False, description="use the free list of this package under the evictor lru, too"
    )


@dataclass(frozen=True)
class Loaded:
    """Checked settings, where each is written, and the registry that has their components."""

    settings: PolicySettings
    origins: Mapping[str, Origin]
    registry: Registry


@cache
def settings_class(registry: Registry) -> type[PolicySettings]:
    """Return the settings with a field for each slot, for the components that are installed."""
    fields: dict[str, Any] = {
        key: slot_field(registry, registry.slots[key]) for key in (*CARRIED, *STAYS)
    }
    made = create_model("PolicySettings", __base__=PolicySettings, __module__=__name__, **fields)
    made.registry = registry
    return made


def load_settings(
    argument: object = None,
    *,
    policy: str = "fcfs",
    registry: Registry | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """Load and check the settings of all layers.

    Highest first: vLLM's ``--additional-config``, variables such as
    ``PAGED_CORE_VLLM__QUEUE_ORDER``, the file that ``PAGED_CORE_VLLM_CONFIG`` names, and vLLM's own
    ``--scheduling-policy`` for the order.

    Args:
        argument: the value of ``paged_core`` in ``--additional-config``.
        policy: vLLM's scheduling policy.

    Raises:
        SettingsError: a setting is wrong or cannot be carried over; the message says which, where
            it is written and why.
    """
    registry = registry or Registry.discover(block=blocked_plugins(environ))
    made = settings_class(registry)
    own = Origin("default", "vLLM's --scheduling-policy")
    layers: list[Layer] = [list(sources.entries({"queue_order": policy}, own, lambda _: None))]
    if path := environ.get(CONFIG):
        try:
            layers.append(sources.from_file(Path(path).expanduser()))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(f"cannot read settings file {path}: {reason} ({CONFIG})") from None
    _check_names(environ)
    layers.append(sources.from_environment(environ, made.model_fields, PREFIX))
    if argument is not None:
        origin = Origin("cli", f"--additional-config, {ARGUMENT!r}")
        if not isinstance(argument, Mapping):
            raise SettingsError(
                f"{ARGUMENT} must be a table of settings, not {argument!r} ({origin})"
            )
        layers.append(list(sources.entries(argument, origin, lambda _: None)))
    for layer in layers:
        _refuse_what_stays(layer)
    settings, origins = made.from_layers(layers)
    return Loaded(settings, origins, registry)


def _check_names(environ: Mapping[str, str]) -> None:
    """Refuse variables that look like these settings and are none."""
    for name in environ:
        if name.startswith(CONFIG.removesuffix("CONFIG")) and not name.startswith((PREFIX, CONFIG)):
            known = [CONFIG, *(PREFIX + key.upper() for key in PolicySettings.model_fields)]
            raise SettingsError(f"{name} sets nothing{did_you_mean(name, known)}")


def _refuse_what_stays(layer: Layer) -> None:
    """Refuse what vLLM decides itself, by name and with the reason."""
    for entry in layer:
        key, *option = entry.path
        if key in STAYS:
            name, reason = STAYS[key]
            value = (
                entry.value.get("name", name) if isinstance(entry.value, Mapping) else entry.value
            )
            is_option = (option or ["name"]) != ["name"] or isinstance(entry.value, Mapping)
            accepted = {name, "uncached"} if key == "block_allocator" else {name}
            if is_option or str(value) not in accepted:
                raise SettingsError(
                    f"{entry.key}: {value!s:.80} cannot be carried over to vLLM: {reason}; leave "
                    f"it out{entry.origin.suffix}"
                )
        elif key in EngineSettings.model_fields and key not in PolicySettings.model_fields:
            raise SettingsError(
                f"{entry.key} cannot be carried over to vLLM, which has its own arguments for what "
                f"is no decision of a component; leave it out{entry.origin.suffix}"
            )
