"""The scenes that an engine is measured by: batches of equal requests over a grid of sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from paged_core.engine.engine import Engine
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS = (16, 64, 192, 512, 1024, 2048)
_PROMPTS = (8, 24, 48, 96, 140, 250, 320, 400, 700, 900, 1500)
"""Tokens of prompts, in scenes that are about the prompt alone."""
_LATE = (8, 24, 64, 160, 400)
_MOST_TOKENS = 4096
"""In the prompts of one scene; a larger one would take minutes on a processor."""
_DECODE_STEPS = 8
_FORKS = ((1, 2), (1, 8), (2, 8), (4, 4), (1, 16), (4, 8), (4, 16))
"""Requests, and sequences of each."""
_SWAPPED = (4, 6, 8, 12, 16, 24)
"""Blocks of a request that is preempted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Requests with equal prompts in length, then, in most scenes, one that arrives while they
    decode.
    """

    batch: int
    context: int
    """Tokens of each prompt."""
    late: int = 0
    """New tokens in the prompt of the late request; 0: there is none."""
    shares: bool = False
    """True if the late request continues a prompt of the batch, which is cached."""
    after_idle: bool = False
    """True if the engine is idle before it."""
    output: int = _DECODE_STEPS
    """Tokens that each sequence of the batch generates."""
    n: int = 1
    """Sequences of each request of the batch, which fork after the prompt."""


def scenes(engine: Engine) -> Iterator[Scene]:
    """Yield scenes over a grid of batches and contexts, as far as an engine can serve them, and
    between them some with one prompt and few tokens after it.
    """
    max_model_len, num_tokens, max_num_seqs = _limits(engine)
    number = 0
    for context in _CONTEXTS:
        for batch in _BATCHES:
            late, shares = _LATE[number % len(_LATE)], number % 2 == 1
            last = late + context * shares + 2
            needed = batch * (context + _DECODE_STEPS + 16) + last + 16
            if (
                batch * context <= _MOST_TOKENS
                and needed <= num_tokens
                and batch < (max_num_seqs or batch + 1)
                and max(context + _DECODE_STEPS, last) <= max_model_len
            ):
                idle = number % 3 == 0
                yield Scene(batch=batch, context=context, late=late, shares=shares, after_idle=idle)
                number += 1
                prompt, idle = _PROMPTS[number % len(_PROMPTS)], number % 3 == 0
                if prompt + 4 <= max_model_len and 2 * prompt + 64 <= num_tokens:
                    yield Scene(batch=1, context=prompt, late=8, after_idle=idle, output=2)


def _limits(engine: Engine) -> tuple[int, int, int | None]:
    """Return the longest sequence, the slots of the cache, and the sequences that may run."""
    slots = engine.kv_cache.num_blocks * engine.kv_cache.block_size
    return engine.capacity.max_model_len, slots, engine.scheduler.max_num_seqs


def fork_scenes(engine: Engine) -> Iterator[Scene]:
    """Yield scenes in which sequences share the last block of their prompt, and copy it to write to
    it, as far as an engine can serve them; none where a block has room for one token.
    """
    max_model_len, num_tokens, max_num_seqs = _limits(engine)
    block_size = engine.kv_cache.block_size
    context = block_size + block_size // 2
    for batch, n in _FORKS if block_size > 1 else ():
        num_seqs = batch * n
        needed = num_seqs * (context + 2 * block_size)
        if (
            context + 2 <= max_model_len
            and needed <= num_tokens
            and num_seqs <= (max_num_seqs or num_seqs)
        ):
            yield Scene(batch=batch, context=context, n=n, output=2)


_LEAST_SCENES = 6
_SWAP_BLOCKS = 48
"""Blocks of an engine that swaps: few, so that few requests fill its cache."""


def choose_scenes(engine: Engine, num_steps: int) -> list[Scene]:
    """Return scenes of about ``num_steps`` steps, spread over what an engine can serve; in the last
    ones blocks are copied.

    Raises:
        SettingsError: it can serve too few.
    """
    found = list(scenes(engine))
    if len(found) < _LEAST_SCENES:
        longest, slots, _ = _limits(engine)
        raise SettingsError(
            f"an engine of {slots:,} cached tokens and max_model_len={longest} is too small to be "
            "calibrated; raise num_blocks or max_model_len"
        )
    long = [scene for scene in found if scene.output > 2]
    output = max(4, min(64, round((num_steps - 3 * len(found)) / len(long))))
    grid = [replace(scene, output=output) if scene.output > 2 else scene for scene in found]
    if engine.kv_cache.reserves_runs:  # no block is shared, and so none is copied
        return grid
    return [*grid, *fork_scenes(engine)]


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
    """Return scenes for an engine that has the settings of :func:`swap_settings`: their prompts
    fill the cache, so that requests are preempted when they grow.
    """
    kv_cache, most = engine.kv_cache, engine.scheduler.max_num_seqs
    found, size = [], kv_cache.block_size
    for blocks in _SWAPPED:
        batch = kv_cache.num_blocks // blocks
        for free in sorted({1, max(1, size // 2)}):
            context = max(1, blocks * size - free)
            fits = context + size + 2 <= engine.capacity.max_model_len
            if fits and 2 <= batch <= (most or batch):
                found.append(Scene(batch=batch, context=context, output=free + 4))
    return found
