"""Copies blocks within the caches of several layers, in one launch."""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["source_layer", "target_layer"],
    do_not_specialize_on_alignment=["origins", "destinations"],
)
def copy_blocks(
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
