"""Blocks of a cache are copied by one launch for all layers, without a copy in between.

Shapes: L layers, N blocks, P pairs of blocks, W words of a block.
"""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_backends.attention.transfer import to_device

_WORDS = 1024
"""That a program copies."""


@triton.jit(
    do_not_specialize=["source_layer", "target_layer"],
    do_not_specialize_on_alignment=["origins", "destinations"],
)
def copy_words(
    source, target, origins, destinations, source_layer, target_layer, block_words,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Copy block ``origins[i]`` of ``source`` to block ``destinations[i]`` of ``target``, in every
    layer; no block is both read and written.

    Blocks are contiguous, of ``block_words`` words, and so are those of a layer; the distances of
    layers are given. Grid: (number of blocks, block_words / WORDS, layers).
    """
    layer = tl.program_id(2).to(tl.int64)
    origin = layer * source_layer + tl.load(origins + tl.program_id(0)) * block_words
    destination = layer * target_layer + tl.load(destinations + tl.program_id(0)) * block_words
    word_N = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    is_there_N = word_N < block_words
    words_N = tl.load(source + origin + word_N, is_there_N)
    tl.store(target + destination + word_N, words_N, is_there_N)


def copy_blocks(caches_LN: Tensor, origins_P: Sequence[int], destinations_P: Sequence[int]) -> None:
    """Copy blocks within caches of one shape; every block is read before any is written.

    It does not wait for the device.

    Args:
        caches_LN: [L, N, ...], contiguous.
    """
    words_LNW = _as_words(caches_LN)
    if set(origins_P).isdisjoint(destinations_P):
        _launch(words_LNW, origins_P, words_LNW, destinations_P)
        return
    layers, _, width = words_LNW.shape
    staged_LPW = words_LNW.new_empty(layers, len(origins_P), width)
    _launch(words_LNW, origins_P, staged_LPW, range(len(origins_P)))
    _launch(staged_LPW, range(len(origins_P)), words_LNW, destinations_P)


def _as_words(caches_LN: Tensor) -> Tensor:
    """Return [L, N, W] in the widest words that a block has a whole number of."""
    bytes_LNB = caches_LN.view(caches_LN.shape[0], caches_LN.shape[1], -1).view(torch.uint8)
    for dtype in (torch.int64, torch.int32, torch.int16):
        if bytes_LNB.shape[-1] % dtype.itemsize == 0:
            return bytes_LNB.view(dtype)
    return bytes_LNB


def _launch(
    source_LNW: Tensor,
    origins_P: Sequence[int],
    target_LNW: Tensor,
    destinations_P: Sequence[int],
) -> None:
    layers, _, width = source_LNW.shape
    origins, destinations = (
        to_device(np.array(blocks, np.int64), source_LNW.device)
        for blocks in (origins_P, destinations_P)
    )
    copy_words[(len(origins_P), -(-width // _WORDS), layers)](
        source_LNW,
        target_LNW,
        origins,
        destinations,
        source_LNW.stride(0),
        target_LNW.stride(0),
        width,
        WORDS=_WORDS,
    )
