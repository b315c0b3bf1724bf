"""What a calibration runs: batches of equal requests over a grid of sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS = (16, 64, 192, 512, 1024, 2048)
_PROMPTS = (8, 24, 48, 96, 140, 250, 320, 400, 700, 900, 1500)
"""Of scenes that are about the prompt alone."""
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
    """Whether the late request continues a prompt of the batch, which is cached."""
    after_idle: bool = False
    """Whether the engine is idle before it."""
    output: int = _DECODE_STEPS
    """Tokens that each sequence of the batch generates."""
    n: int = 1
    """Sequences of each request of the batch, which fork after the prompt."""


def scenes(max_model_len: int, num_tokens: int, max_num_seqs: int | None) -> Iterator[Scene]:
    """Yield scenes over a grid of batches and contexts, as far as an engine can serve them, and
    between them some with one prompt and few tokens after it.

    Args:
        num_tokens: slots of its cache.
        max_num_seqs: sequences that may run at once.
    """
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
                yield Scene(
                    batch=batch,
                    context=context,
                    late=late,
                    shares=shares,
                    after_idle=number % 3 == 0,
                )
                number += 1
                prompt = _PROMPTS[number % len(_PROMPTS)]
                if prompt + 4 <= max_model_len and 2 * prompt + 64 <= num_tokens:
                    yield Scene(
                        batch=1,
                        context=prompt,
                        late=8,
                        after_idle=number % 3 == 0,
                        output=2,
                    )


def fork_scenes(
    max_model_len: int, num_tokens: int, max_num_seqs: int | None, block_size: int
) -> Iterator[Scene]:
    """Yield scenes in which sequences share the last block of their prompt, and copy it to write to
    it, as far as an engine can serve them; none where a block has room for one token.

    Args:
        num_tokens: slots of its cache.
        max_num_seqs: sequences that may run at once.
    """
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


def swap_scenes(
    max_model_len: int, num_blocks: int, max_num_seqs: int | None, block_size: int
) -> Iterator[Scene]:
    """Yield scenes whose prompts fill a cache, so that requests are preempted when they grow.

    Args:
        num_blocks: of the cache.
        max_num_seqs: sequences that may run at once.
    """
    for blocks in _SWAPPED:
        batch = num_blocks // blocks
        for free in sorted({1, max(1, block_size // 2)}):
            context = max(1, blocks * block_size - free)
            if context + block_size + 2 <= max_model_len and 2 <= batch <= (max_num_seqs or batch):
                yield Scene(batch=batch, context=context, output=free + 4)
