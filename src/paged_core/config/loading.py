"""Reads settings from every layer: command line, environment, settings file, profile, defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_core.config.layers import (
    PREFIX,
    Layer,
    Source,
    blocked_plugins,
    from_environment,
    from_file,
    from_keywords,
)
from paged_core.registry import Registry
from paged_core.settings import EngineSettings, settings_class


@dataclass(frozen=True)
class Resolved:
    """Settings, where each value comes from, and what the components come from."""

    settings: EngineSettings
    sources: Mapping[str, Source]
    """By dotted key: ``scheduler.max_num_seqs``; a list such as ``observers`` is one value."""
    registry: Registry


def load_settings(
    registry: Registry | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    options: Layer = (),
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Resolved:
    """Resolve settings: ``overrides`` over ``options`` over environment over file over profile.

    Args:
        registry: ``None``: what is installed, less what ``PAGED_CORE_BLOCK_PLUGIN`` names.
        config: a settings file; ``None``: what ``PAGED_CORE_CONFIG`` names, if anything.
        options: what the command line says.
        overrides: settings as keywords, over all else.
        environ: the environment to read.

    Raises:
        SettingsError: a setting or the file is wrong; the message says where and what to do.
        PluginError: two plugins claim one name.
    """
    if registry is None:
        registry = Registry.discover(block=blocked_plugins(environ))
    made = settings_class(registry)
    layers: list[Layer] = []
    if config is not None:
        layers.append(from_file(Path(config), "the settings file asked for"))
    elif path := environ.get(f"{PREFIX}CONFIG"):
        layers.append(from_file(Path(path), f"{PREFIX}CONFIG"))
    layers += [
        from_environment(environ, made.model_fields),
        options,
        from_keywords(overrides or {}),
    ]
    settings, sources = made.from_layers(layers)
    return Resolved(settings, sources, registry)
