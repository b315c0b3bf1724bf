"""Sampling where several ranks compute each step: the first one samples, and the others follow.

Every rank calls the same operations of the communicator in the same order, whatever requests ask
for; what runs code of users, reads grammars or draws random numbers runs on the first rank alone.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paged_backends.sampling import Row, SampledTokens, Sampler
from paged_core.interfaces.communicator import Communicator

_FAILED = -1
"""In place of a token."""


class SharedSampler:
    """A :class:`Sampler` of all ranks: tokens are those of rank 0.

    Log-probabilities and candidates are for the engine, which asks rank 0: others have none.
    """

    def __init__(self, sampler: Sampler, communicator: Communicator) -> None:
        self._sampler = sampler
        self._communicator = communicator
        self._leads = communicator.rank == 0

    def sample(self, logits: Tensor, rows: Sequence[Row], /) -> SampledTokens:
        """As :meth:`Sampler.sample`."""
        tokens = torch.empty(len(rows), dtype=torch.int64)
        if self._leads:
            sampled = self._sampler.sample(logits, rows)
            tokens = torch.tensor(sampled.token_ids, dtype=torch.int64)
            tokens[list(sampled.failed)] = _FAILED
        tokens = tokens.to(logits.device)
        self._communicator.broadcast(tokens)
        if self._leads:
            return sampled
        token_ids = tokens.tolist()
        failed = {row: "on rank 0" for row, token in enumerate(token_ids) if token == _FAILED}
        return SampledTokens(token_ids, None, failed)

    def rank(
        self, logits: Tensor, rows: Sequence[Row], counts: Sequence[int], /
    ) -> tuple[list[dict[int, float]], dict[int, str]]:
        """As :meth:`Sampler.rank`."""
        if self._leads:
            return self._sampler.rank(logits, rows, counts)
        return [{} for _ in rows], {}

    def logprobs_of(
        self, logits: Tensor, token_ids: Sequence[int], num_top: int, /
    ) -> list[dict[int, float]]:
        """As :meth:`Sampler.logprobs_of`."""
        return self._sampler.logprobs_of(logits, token_ids, num_top) if self._leads else []
