"""One sequence as an executor knows it."""

from __future__ import annotations

from paged_backends.sampling import Row
from paged_core.step import NewSequence


class KnownSequence:
    """A sequence: its row in the arrays, its tokens, and how it is sampled.

    Only :class:`~paged_backends.executors.sequence_rows.SequenceRows` changes one.
    """

    __slots__ = (
        *("asks_host", "fan_out", "id", "num_candidates", "prompt_logprobs"),
        *("row", "sampling", "tokens"),
    )

    def __init__(self, new: NewSequence, row: int) -> None:
        self.id = new.id
        self.row = row
        self.tokens = list(new.tokens)
        self.fan_out = new.fan_out
        self.num_candidates = new.num_candidates
        self.prompt_logprobs = new.sampling.prompt_logprobs
        self.sampling = Row(
            sampling=new.sampling,
            tokens=self.tokens,
            num_prompt_tokens=new.num_prompt_tokens,
            index=new.index,
            request_id=new.request_id,
        )
        self.asks_host = bool(
            self.sampling.processed
            or new.sampling.min_tokens
            or new.sampling.needed_logprobs is not None
            or new.sampling.prompt_logprobs is not None
            or new.num_candidates
        )
        """Its tokens are always chosen on the host, which has to know all of them."""

    @property
    def needs_host(self) -> bool:
        """Its next token is chosen there."""
        return self.asks_host or self.fan_out > 1

    def fan_out_rows(self) -> list[Row]:
        """Return a row for the sampler for each token to draw: several if the sequence fans out."""
        first = self.sampling
        others = [
            Row(
                sampling=first.sampling,
                tokens=self.tokens,
                num_prompt_tokens=first.num_prompt_tokens,
                index=first.index + offset,
                request_id=first.request_id,
            )
            for offset in range(1, self.fan_out)
        ]
        return [first, *others]
