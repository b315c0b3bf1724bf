"""Blocks of a cache are copied by one launch for all layers, without a copy in between.

Shapes: L layers, N blocks, P pairs of blocks. Imports Triton.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paged_backends.attention.transfer import to_device
from paged_backends.kernels.triton.attention_copy import copy_blocks as launch

_WORDS = 1024


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
    launch[(len(origins_P), -(-width // _WORDS), layers)](
        source_LNW,
        target_LNW,
        origins,
        destinations,
        source_LNW.stride(0),
        target_LNW.stride(0),
        width,
        WORDS=_WORDS,
    )
