"""Work of a step, by which cost models predict its time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class StepWork:
    """Work of a step: tokens computed and blocks moved."""

    prefill_tokens: int = 0
    """Tokens of sequences that compute several, or do not draw one yet."""
    prefill_sequences: int = 0
    """The sequences that these tokens are of."""
    prefill_pairs: int = 0
    """Pairs of a query and a key that attention computes for them."""
    prefill_context: int = 0
    """Cached tokens that attention reads for them."""
    decode_sequences: int = 0
    """Sequences that compute one token and draw the next."""
    decode_context: int = 0
    """Cached tokens that attention reads for them."""
    sampled_rows: int = 0
    """Rows of logits."""
    after_idle: int = 0
    """1 if the engine had done nothing for 5 ms before, so that threads and caches must be woken
    and filled; else 0."""
    copied_blocks: int = 0
    swapped_blocks: int = 0
    """Out and in together."""
