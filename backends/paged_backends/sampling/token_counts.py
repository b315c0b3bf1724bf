"""Which tokens a sequence holds and how often it generated each, updated as it grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
        """How often each of :attr:`ids` occurs in the output."""
        return self._counts[: len(self._indices)]
