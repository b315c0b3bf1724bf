"""What an engine serves before it is measured."""

from __future__ import annotations

import gc

from paged_core.engine import Engine
from paged_core.request import Request
from paged_plugins.lab.runs.engine_request import exact_sampling

_MOST_WARM = 16_384
"""Slots of the cache that are written before a run, at most."""


def warm_up(engine: Engine) -> None:
    """Serve short and long requests, so that what is done once is not measured; forget them.

    A small cache is written to its end: the memory of one is often mapped when it is first used,
    which takes longer than to compute what is written. The objects that live by then are left out
    of Python's garbage collections: a look at all that PyTorch has made would stop the engine for
    tens of milliseconds, again and again.
    """
    kv_cache, vocab_size = engine.kv_cache, engine.capacity.vocab_size or 1024
    slots = kv_cache.num_blocks * kv_cache.block_size
    most = min(engine.scheduler.length_cap, slots) // 2
    num_long = -(-min(slots, _MOST_WARM) // min(1024, most))
    for number, length in enumerate([min(24, most), *[min(1024, most)] * num_long]):
        prompt = tuple((number + place) % vocab_size for place in range(length))
        request = Request(id=f"warm-up {number}", prompt=prompt, sampling=exact_sampling(1, 4))
        engine.add(request)
        while engine.has_unfinished:
            engine.step()
    engine.reset_prefix_cache()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
