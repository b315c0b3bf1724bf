"""Scores of a vocabulary that is divided among ranks, and which of its tokens are the best.

Shapes: R rows that sample a token, V tokens of the vocabulary, N ranks, K tokens of each row, the
best first.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.runners.native.share import Share, length
from paged_core.interfaces.communicator import Communicator

_LAST = (1 << 31) - 1
"""The largest token id that a key holds."""
_LOW = (1 << 32) - 1
_NONE = torch.iinfo(torch.int64).min
"""Below the key of any token."""


def keys(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return int64 that are ordered as scores, and where these are equal, as the lower token first.

    NaN comes before all others. High bits hold the float32, low bits what lies above the token.
    """
    numbers = torch.where(scores.isnan(), torch.nan, scores.float()) + 0.0  # -0 is 0
    bits = numbers.view(torch.int32)
    ordered = (bits ^ (bits >> 31 & _LAST)).long()  # of negative numbers, all bits but the sign
    return (ordered << 32) + (_LAST - tokens)


def scores_and_tokens(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the float32 and the int64 of which keys were made."""
    bits = (keys >> 32).int()
    return (bits ^ (bits >> 31 & _LAST)).view(torch.float32), _LAST - (keys & _LOW)


def top_keys(logits_RV: Tensor, k: int, first: int = 0) -> Tensor:
    """Return the keys [R, K] of the best tokens, of which the first is ``first``."""
    tokens_V = torch.arange(first, first + logits_RV.shape[1], device=logits_RV.device)
    return keys(logits_RV, tokens_V).topk(k, dim=-1).values


class DividedVocabulary:
    """Puts together what ranks have found among their tokens; each gets the same."""

    def __init__(self, share: Share, communicator: Communicator, vocab_size: int) -> None:
        self._communicator = communicator
        parts = [Share(rank=rank, size=share.size) for rank in range(share.size)]
        self._counts = [length(part.units(vocab_size)) for part in parts]
        self._first = share.units(vocab_size).start

    def logits(self, logits_RV: Tensor) -> Tensor:
        """Return the logits of all tokens; shares of unequal size are filled up on the way."""
        missing = max(self._counts) - logits_RV.shape[1]
        if missing:
            logits_RV = functional.pad(logits_RV, (0, missing))
        logits_NRV = self._communicator.all_gather(logits_RV.contiguous())
        parts = [
            part_RV[:, :count] for part_RV, count in zip(logits_NRV, self._counts, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def best(self, best_R: Tensor, scores_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best of the best tokens of all ranks, and its score in float32."""
        keys_NR = self._communicator.all_gather(keys(scores_R, best_R + self._first))
        scores_R, best_R = scores_and_tokens(keys_NR.max(dim=0).values)
        return best_R, scores_R

    def top_keys(self, logits_RV: Tensor, k: int) -> Tensor:
        """Return the keys [R, K] of the best tokens of all ranks."""
        held = min(k, logits_RV.shape[1])
        keys_RK = top_keys(logits_RV, held, self._first)
        if held < k:
            keys_RK = functional.pad(keys_RK, (0, k - held), value=_NONE)
        keys_NRK = self._communicator.all_gather(keys_RK)
        return keys_NRK.transpose(0, 1).flatten(1).topk(k, dim=-1).values
