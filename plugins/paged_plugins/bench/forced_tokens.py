"""Teacher forcing: a request generates a given text, whatever the model predicts.

Shapes: D tokens of the text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class ForcedTokens:
    """A logits processor that makes a request generate the given tokens, and keeps its logits."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._logits_DV: Tensor | None = None

    def __call__(self, output: Sequence[int], logits: Tensor, /) -> Tensor:
        if self._logits_DV is None:
            self._logits_DV = logits.new_empty(len(self._tokens), len(logits), device="cpu")
        place = len(output)
        self._logits_DV[place] = logits
        forced = logits.new_full(logits.shape, -inf)
        forced[self._tokens[place]] = 0
        return forced

    @property
    def logits_DV(self) -> Tensor:  # noqa: N802
        """The logits of all tokens, once the request has ended."""
        assert self._logits_DV is not None
        return self._logits_DV
