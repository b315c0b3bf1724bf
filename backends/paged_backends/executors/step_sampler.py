"""From the hidden states of a step to its tokens, log-probabilities and candidates.

Shapes: T tokens of S sequences in the batch, R rows of logits.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.executors.batch import Batch
from paged_backends.executors.sequence_rows import SequenceRows
from paged_backends.sampling import Sampler
from paged_core.ids import SeqId
from paged_core.interfaces.runner import Runner, SupportsBestTokens

_MAX_LOGITS = 1 << 25
"""Logits of a prompt held at once where its log-probabilities are asked for: 128 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The tokens that a step draws; sequences that failed have none."""

    places_R: NDArray[np.int64]
    """Place in the batch of each token's sequence, rising; repeated where a sequence fans out."""
    token_ids: list[int]
    logprobs: list[dict[int, float] | None] | None = None
    failed: dict[SeqId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The best continuations of the beams of a step; beams that failed have none."""

    logprobs: dict[SeqId, dict[int, float]] = field(default_factory=dict)
    """By token id, best first."""
    failed: dict[SeqId, str] = field(default_factory=dict)


class StepSampler:
    """Samples for the sequences of a batch whose tokens are all computed; changes none of them.

    Each method takes a batch and its hidden states [T, hidden].
    """

    def __init__(self, runner: Runner, sampler: Sampler, rows: SequenceRows) -> None:
        self._runner = runner
        self._sampler = sampler
        self._rows = rows
        self._best_tokens: Callable[[Tensor], tuple[Tensor, Tensor]] | None = (
            runner.best_tokens if isinstance(runner, SupportsBestTokens) else None
        )

    def draw_best(self, batch: Batch, hidden: Tensor) -> Drawn | None:
        """Take the best token of each sequence without computing all logits.

        Returns:
            ``None`` if the runner cannot, a sequence asks for anything else than its best token,
            or a score is not finite: :meth:`draw` then does the work, and says what is wrong.
        """
        if self._best_tokens is None or not self._rows.plain_C[batch.rows_S].all():
            return None
        places_R = np.flatnonzero(batch.complete_S)
        if not len(places_R):
            return Drawn(places_R=places_R, token_ids=[])
        best_R, scores_R = self._best_tokens(_last_hidden(batch, places_R, hidden))
        if not all(map(isfinite, scores_R.tolist())):
            return None
        return Drawn(places_R=places_R, token_ids=best_R.tolist())

    def draw(self, batch: Batch, hidden: Tensor) -> Drawn:
        """Draw a token for each sequence, or several where it fans out; none for beams."""
        draws_S = batch.complete_S.copy()
        draws_S[self._beams(batch)] = False
        places_R = np.flatnonzero(draws_S)
        if not len(places_R):
            return Drawn(places_R=places_R, token_ids=[])
        sequences = [batch.sequences[place] for place in places_R.tolist()]
        rows = [sequence.sampling for sequence in sequences]
        if any(sequence.fan_out > 1 for sequence in sequences):
            places_R = np.repeat(places_R, [sequence.fan_out for sequence in sequences])
            rows = [row for sequence in sequences for row in sequence.fan_out_rows()]
        logits = self._runner.logits(_last_hidden(batch, places_R, hidden))
        draws = self._sampler.draw(logits, rows)
        drawn = Drawn(places_R=places_R, token_ids=draws.token_ids, logprobs=draws.logprobs)
        return _without_failed(drawn, batch, draws.failed) if draws.failed else drawn

    def rank(self, batch: Batch, hidden: Tensor) -> Candidates:
        """Find the best continuations of each beam."""
        places = self._beams(batch)
        if not places:
            return Candidates()
        beams = [batch.sequences[place] for place in places]
        found, failed = self._sampler.rank(
            self._runner.logits(_last_hidden(batch, np.asarray(places), hidden)),
            [beam.sampling for beam in beams],
            [beam.num_candidates for beam in beams],
        )
        return Candidates(
            logprobs={beam.id: found[row] for row, beam in enumerate(beams) if row not in failed},
            failed={beams[row].id: reason for row, reason in failed.items()},
        )

    def prompt_logprobs(self, batch: Batch, hidden: Tensor) -> dict[SeqId, list[dict[int, float]]]:
        """Return log-probabilities of the prompt tokens that follow a token of this step, for each
        sequence that asks for them."""
        return {
            batch.sequences[place].id: self._prompt_logprobs(batch, place, hidden)
            for place in self._special(batch)
            if batch.sequences[place].prompt_logprobs is not None
        }

    def _prompt_logprobs(self, batch: Batch, place: int, hidden: Tensor) -> list[dict[int, float]]:
        sequence = batch.sequences[place]
        begin, count = int(batch.computed_S[place]), int(batch.counts_S[place])
        end = min(begin + count, sequence.sampling.num_prompt_tokens - 1)
        first = int(batch.last_S[place]) - (count - 1)
        step = max(1, _MAX_LOGITS // self._runner.vocab_size)
        entries: list[dict[int, float]] = []
        for start in range(begin, end, step):
            stop = min(end, start + step)
            entries += self._sampler.logprobs_of(
                self._runner.logits(hidden[first + start - begin : first + stop - begin]),
                sequence.tokens[start + 1 : stop + 1],
                sequence.prompt_logprobs or 0,
            )
        return entries

    def _beams(self, batch: Batch) -> list[int]:
        """Return the places of the beams whose tokens are all computed."""
        return [
            place
            for place in self._special(batch)
            if batch.sequences[place].num_candidates and batch.complete_S[place]
        ]

    def _special(self, batch: Batch) -> Iterator[int]:
        places: list[int] = np.flatnonzero(self._rows.special_C[batch.rows_S]).tolist()
        return iter(places)


def _last_hidden(batch: Batch, places_R: NDArray[np.int64], hidden: Tensor) -> Tensor:
    """Return the hidden states of the last tokens of these sequences [R, hidden]."""
    last_R = batch.last_S[places_R]
    if np.array_equal(last_R, np.arange(len(hidden))):
        return hidden
    return hidden.index_select(0, torch.from_numpy(last_R).to(hidden.device))


def _without_failed(drawn: Drawn, batch: Batch, failed: dict[int, str]) -> Drawn:
    """Leave out every token of a sequence of which one row failed; ``failed``: reasons by row."""
    ids = [batch.sequences[place].id for place in drawn.places_R.tolist()]
    reasons = {ids[row]: reason for row, reason in failed.items()}
    kept = [row for row, seq_id in enumerate(ids) if seq_id not in reasons]
    logprobs = drawn.logprobs
    return Drawn(
        places_R=drawn.places_R[kept],
        token_ids=[drawn.token_ids[row] for row in kept],
        logprobs=[logprobs[row] for row in kept] if logprobs is not None else None,
        failed=reasons,
    )
