"""Copies blocks within a cache, or to another on the same device, in one launch."""

# ruff: noqa: N803, N806 - constants are upper-case, and the shape of an array is the end of its name
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["origins", "destinations"])
def copy_blocks(source, target, origins, destinations, block_words, WORDS: tl.constexpr):
    """Copy block ``origins[i]`` of ``source`` to block ``destinations[i]`` of ``target``.

    Blocks are contiguous, of ``block_words`` numbers; no block is both read and written. Grid:
    (number of blocks, block_words / WORDS).
    """
    origin = tl.load(origins + tl.program_id(0)).to(tl.int64)
    destination = tl.load(destinations + tl.program_id(0)).to(tl.int64)
    word_N = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    is_there_N = word_N < block_words
    words_N = tl.load(source + origin * block_words + word_N, is_there_N)
    tl.store(target + destination * block_words + word_N, words_N, is_there_N)
