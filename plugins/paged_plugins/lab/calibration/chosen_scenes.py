"""The scenes that an engine is measured by."""

from __future__ import annotations

from dataclasses import replace

from paged_core.engine import Engine
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_core.settings import EngineSettings
from paged_plugins.lab.calibration.scene import Scene, fork_scenes, scenes, swap_scenes

_LEAST_SCENES = 6
_SWAP_BLOCKS = 48
"""Of the cache of an engine that swaps: few, so that few requests fill it."""


def choose_scenes(engine: Engine, num_steps: int) -> list[Scene]:
    """Return scenes of about ``num_steps`` steps, spread over what an engine can serve; in the last
    ones blocks are copied.

    Raises:
        SettingsError: it can serve too few.
    """
    kv_cache, longest = engine.kv_cache, engine.capacity.max_model_len
    slots, most = kv_cache.num_blocks * kv_cache.block_size, engine.scheduler.max_num_seqs
    found = list(scenes(longest, slots, most))
    if len(found) < _LEAST_SCENES:
        raise SettingsError(
            f"an engine of {slots:,} cached tokens and max_model_len={longest} is too small to be "
            "calibrated; raise num_blocks or max_model_len"
        )
    long = [scene for scene in found if scene.output > 2]
    output = max(4, min(64, round((num_steps - 3 * len(found)) / len(long))))
    grid = [replace(scene, output=output) if scene.output > 2 else scene for scene in found]
    if kv_cache.reserves_runs:  # no block is shared, and so none is copied
        return grid
    return [*grid, *fork_scenes(longest, slots, most, kv_cache.block_size)]


def swap_settings(
    settings: EngineSettings, registry: Registry, max_model_len: int
) -> EngineSettings:
    """Return the settings of an engine that is like another, but has a small cache and swaps what
    does not fit it.

    Args:
        max_model_len: of the other engine.

    Raises:
        PluginError: there is no preemption that swaps.
    """
    swap = registry.get("preemption", "swap").settings.model_validate({})
    return settings.model_copy(
        update={
            "preemption": swap,
            "num_blocks": _SWAP_BLOCKS,
            "num_host_blocks": _SWAP_BLOCKS,
            "max_model_len": min(max_model_len, _SWAP_BLOCKS * settings.block_size),
            "watermark": 0.0,
        }
    )


def choose_swap_scenes(engine: Engine) -> list[Scene]:
    """Return scenes for an engine that has the settings of :func:`swap_settings`."""
    kv_cache = engine.kv_cache
    return list(
        swap_scenes(
            engine.capacity.max_model_len,
            kv_cache.num_blocks,
            engine.scheduler.max_num_seqs,
            kv_cache.block_size,
        )
    )
