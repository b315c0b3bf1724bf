"""Sampling where several ranks compute each step: the first one samples, and the others follow.

Every rank calls the same operations of the communicator in the same order, whatever requests ask
for; what runs code of users, reads grammars or draws random numbers runs on the first rank alone.

Shapes: R rows, V vocabulary, K best tokens of a row.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paged_backends.sampling import Row, SampledTokens, Sampler
from paged_core.interfaces.communicator import Communicator

_FAILED = -1
"""In place of a token."""
_NUM_BEST = 64
"""Tokens of each row that ranks exchange instead of all logits, where ``top_k`` asks for fewer."""


class SharedSampler:
    """A :class:`Sampler` of all ranks: tokens are those of rank 0.

    Log-probabilities and candidates are for the engine, which asks rank 0: others have none.
    """

    def __init__(
        self, make_sampler: Callable[[int], Sampler], vocab_size: int, communicator: Communicator
    ) -> None:
        """``make_sampler``: makes one for a vocabulary of this size."""
        self._sampler = make_sampler(vocab_size)
        self.num_best = min(_NUM_BEST, vocab_size)
        self._best_sampler = make_sampler(self.num_best)
        self._communicator = communicator
        self._leads = communicator.rank == 0

    def sample(self, logits: Tensor, rows: Sequence[Row], /) -> SampledTokens:
        """As :meth:`Sampler.sample`."""
        return self._share(self._sampler, logits, rows)

    def needs_best(self, row: Row) -> bool:
        """Return whether sampling a row depends on its :attr:`num_best` best tokens alone.

        One more than ``top_k`` keeps: the sampler then sees that ``top_k`` leaves something out.
        """
        asked = row.sampling
        return row.plain or (
            row.sampled
            and 0 < asked.top_k < self.num_best
            and not row.processed
            and not row.below_min_tokens
            and asked.needed_logprobs is None
        )

    def sample_best(
        self, logits_RK: Tensor, tokens_RK: Tensor, rows: Sequence[Row]
    ) -> SampledTokens:
        """As :meth:`sample`, from the logits of the best tokens, in falling order."""
        places = self._share(self._best_sampler, logits_RK, rows)
        places_R = torch.tensor(places.token_ids, device=tokens_RK.device).clamp_min(0)
        tokens_R = tokens_RK.gather(1, places_R[:, None])[:, 0]
        return SampledTokens(tokens_R.tolist(), None, places.failed)

    def _share(self, sampler: Sampler, logits: Tensor, rows: Sequence[Row]) -> SampledTokens:
        tokens = torch.empty(len(rows), dtype=torch.int64)
        if self._leads:
            sampled = sampler.sample(logits, rows)
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
