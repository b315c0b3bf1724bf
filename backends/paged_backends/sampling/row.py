"""Rows of logits to sample from: the sequence of each, its parameters and its random numbers.

Random numbers depend on the sequence and the position of the token, and on nothing else.
Counter-based, after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): there
is no generator whose state would depend on the schedule, the batch or preemptions. One number per
row and step is needed, so a cryptographic hash is fast enough, and its bits are as good as random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from paged_backends.grammar.masks import SequenceGrammar
from paged_core.sampling_params import SamplingParams


class TokenCounts:
    """The distinct tokens of one growing sequence; each new token costs O(1)."""

    __slots__ = ("_counts", "_ids", "_indices", "_num_seen")

    def __init__(self) -> None:
        self._indices: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.empty(64, np.int64)
        self._counts: NDArray[np.int64] = np.zeros(64, np.int64)
        self._num_seen = 0

    def update(self, tokens: Sequence[int], num_prompt_tokens: int) -> None:
        """Count the tokens that are new since the last call.

        Args:
            tokens: prompt and output; they only ever grow.
            num_prompt_tokens: how many of them are the prompt, which counts as seen 0 times.
        """
        indices = self._indices
        for position in range(self._num_seen, len(tokens)):
            token = tokens[position]
            index = indices.setdefault(token, len(indices))
            if index == len(self._ids):
                self._ids = np.resize(self._ids, 2 * index)
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[index] = token
            self._counts[index] += position >= num_prompt_tokens
        self._num_seen = len(tokens)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens of prompt and output."""
        return self._ids[: len(self._indices)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of times that each of :attr:`ids` occurs in the output."""
        return self._counts[: len(self._indices)]


GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: dividing by them would only lose precision."""
MAX_TEMPERATURE = 1e30
"""All tokens are equally likely from here on; beyond the range of float32, -inf / inf is NaN."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence as the sampler knows it.

    Make it once per sequence and keep it while the sequence grows: ``tokens`` is the caller's live
    list, and what depends on the parameters alone is computed only once. A row made anew for every
    step samples the same tokens, but counts all tokens of its sequence again if it has penalties.
    """

    sampling: SamplingParams
    tokens: list[int]
    """Prompt and output so far; read, never changed."""
    num_prompt_tokens: int
    index: int
    """Its place among the sequences of its request: each has a random stream of its own."""
    request_id: str
    grammar: SequenceGrammar | None = field(default=None, repr=False, compare=False)
    """Has the mask of the form that the output must have."""
    sampled: bool = field(init=False)
    """Its token is sampled at random; otherwise the best token is taken."""
    processed: bool = field(init=False)
    """Its logits are changed by a processor, a bias, a penalty, or a mask for the whole output."""
    plain: bool = field(init=False)
    """Greedy over the model's own logits, without log-probabilities or ``min_tokens``."""
    token_counts: TokenCounts | None = field(init=False, repr=False, compare=False)
    """Kept if a penalty needs them."""

    allowed_ids: NDArray[np.int64] | None = field(init=False, repr=False, compare=False)
    """The only tokens that may be sampled; ``None``: all."""

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
            or params.structured_outputs is not None
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


def uniform(row: Row, engine_seed: int) -> float:
    """Return the number in [0, 1) that selects ``row``'s next token.

    It is a function of the request's seed (or else of the engine's seed and the request's id), of
    the sequence's index, and of the position to be filled.
    """
    return uniform_at(row, len(row.tokens), engine_seed)


def uniform_at(row: Row, position: int, engine_seed: int) -> float:
    """As :func:`uniform`, for the token at ``position``, whatever tokens are known yet."""
    seed = row.sampling.seed
    source = f"request:{seed}" if seed is not None else f"engine:{engine_seed}:{row.request_id}"
    key = f"{source}:{row.index}:{position}:0"
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
