"""One row of logits to draw from: the sequence that it belongs to, and its sampling parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paged_backends.sampling.token_counts import TokenCounts
from paged_core.sampling_params import SamplingParams

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: dividing by them would only lose precision."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the sampler needs to know of a sequence.

    Make it once per sequence and keep it while the sequence grows: ``tokens`` is the caller's live
    list, and what depends on the parameters alone is computed only once. A row made anew for every
    step draws the same tokens, but counts all tokens of its sequence again if it has penalties.
    """

    sampling: SamplingParams
    tokens: list[int]
    """Prompt and output so far; read, never changed."""
    num_prompt_tokens: int
    index: int
    """Its place among the sequences of its request: each draws from a random stream of its own."""
    request_id: str
    sampled: bool = field(init=False)
    """Its token is drawn at random; otherwise the best token is taken."""
    processed: bool = field(init=False)
    """Its logits are changed by a processor, a bias, a penalty, or a mask for the whole output."""
    plain: bool = field(init=False)
    """Greedy over the model's own logits, without log-probabilities or ``min_tokens``."""
    token_counts: TokenCounts | None = field(init=False, repr=False, compare=False)
    """Kept if a penalty needs them."""

    allowed_ids: NDArray[np.int64] | None = field(init=False, repr=False, compare=False)
    """The only tokens that may be drawn; ``None``: all."""

    def __post_init__(self) -> None:
        params = self.sampling
        sampled = params.temperature >= GREEDY_BELOW
        penalised = (
            params.presence_penalty != 0
            or params.frequency_penalty != 0
            or params.repetition_penalty != 1
        )
        allowed = params.allowed_token_ids
        processed = (
            penalised
            or bool(params.logit_bias)
            or bool(params.logits_processors)
            or bool(params.bad_words_ids)
            or allowed is not None
        )
        plain = not (
            sampled or processed or params.min_tokens or params.needed_logprobs is not None
        )
        object.__setattr__(self, "sampled", sampled)
        object.__setattr__(self, "processed", processed)
        object.__setattr__(self, "plain", plain)
        object.__setattr__(self, "token_counts", TokenCounts() if penalised else None)
        ids = None if allowed is None else np.array(allowed, np.int64)
        object.__setattr__(self, "allowed_ids", ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def below_min_tokens(self) -> bool:
        """Fewer tokens than ``min_tokens`` were generated, so that the sequence may not end."""
        return self.num_output_tokens < self.sampling.min_tokens
