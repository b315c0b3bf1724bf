"""The settings that ``bench quality`` measures where none are named."""

from __future__ import annotations

from typing import Any, get_args

from paged_core.component import ComponentSettings
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.bench.variants import Variant

_QUANTIZATION = "quantization"
"""The option of a runner that says in how many bits it keeps weights; ``off``: as they are."""
_CACHE = "kv_cache_dtype"
"""The setting that says how keys and values are stored; ``auto``: in the model's dtype."""


def base_changes(settings: EngineSettings) -> dict[str, Any]:
    """Return what takes quantised weights and a quantised cache back to the model's dtype."""
    changes: dict[str, Any] = {_CACHE: "auto"}
    if _QUANTIZATION in type(settings.runner).model_fields:
        changes["runner"] = {"name": settings.runner.name, _QUANTIZATION: "off"}
    return changes


def quantised_parts(settings: EngineSettings) -> list[str]:
    """Return what the settings quantise, as in ``["int8 weights", "fp8_e4m3 cache"]``."""
    weights = getattr(settings.runner, _QUANTIZATION, "off")
    cache = settings.kv_cache_dtype
    return [f"{weights} weights"] * (weights != "off") + [f"{cache} cache"] * (cache != "auto")


def default_variants(settings: EngineSettings, registry: Registry) -> list[Variant]:
    """Return a variant for the settings of the command, if they quantise anything, and one for
    each kind of weights and of cache that there is, one at a time.

    Weights are those of the chosen runner; with ``auto``, of the runner of the highest rank that
    quantises any.
    """
    found = []
    if quantised_parts(settings):
        found.append(Variant("as given", {}))
    base = base_changes(settings)
    for options in _quantising(settings, registry)[:1]:
        for value in _values(options, _QUANTIZATION, "off"):
            table = {"name": options.model_fields["name"].default, _QUANTIZATION: value}
            found.append(Variant(value, base | {"runner": table}))
    caches = _values(type(settings), _CACHE, "auto")
    return found + [Variant(f"{value} cache", base | {_CACHE: value}) for value in caches]


def _quantising(settings: EngineSettings, registry: Registry) -> list[type[ComponentSettings]]:
    """Return the options of the runners that may quantise, best first."""
    if settings.runner.name == "auto":
        classes = [component.settings for component in registry.candidates("runner")]
    else:
        classes = [type(settings.runner)]
    return [options for options in classes if _QUANTIZATION in options.model_fields]


def _values(model: Any, key: str, none: str) -> list[str]:
    """Return what a setting may be other than ``none``."""
    return [value for value in get_args(model.model_fields[key].annotation) if value != none]
