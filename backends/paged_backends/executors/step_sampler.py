"""Samplers of a step: from its hidden states to its tokens, log-probabilities and candidates.

One works on the host, for all that a request may ask for; the other on the device, where the next
step finds the tokens.

Shapes: T tokens of S sequences in the batch, R rows of logits, V vocabulary, C rows of
:class:`SequenceRows`.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from threading import Thread

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.executors.accelerator import Accelerator, PinnedBuffers
from paged_backends.executors.batch import Batch
from paged_backends.executors.sequence_rows import SequenceRows
from paged_backends.executors.shared_sampling import SharedSampler
from paged_backends.grammar.masks import GrammarMasks
from paged_backends.sampling import Sampler
from paged_backends.sampling.device_sampling import DeviceParams, device_sample
from paged_backends.sampling.random_sampling import best_token
from paged_backends.sampling.row import MAX_TEMPERATURE, uniform_at
from paged_backends.sampling.sampler import unfit_rows
from paged_core.ids import SeqId
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.runner import Runner, SupportsBestTokens, SupportsTopLogits

_MAX_LOGITS = 1 << 25
"""Logits of a prompt held at once where its log-probabilities are asked for: 128 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The tokens that a step samples; sequences that failed have none."""

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

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler | SharedSampler,
        rows: SequenceRows,
        masks: GrammarMasks | None,
    ) -> None:
        """``masks``: ``None`` where another rank samples."""
        self._masks = masks
        self._runner = runner
        self._sampler = sampler
        self._rows = rows
        self._best_tokens: Callable[[Tensor], tuple[Tensor, Tensor]] | None = (
            runner.best_tokens if isinstance(runner, SupportsBestTokens) else None
        )

    def begin_masks(self, batch: Batch) -> Thread | None:
        """Begin to fill the masks of the sequences whose outputs have a form, in one call.

        They are there once the thread has ended; ``None``: there is none.
        """
        if self._masks is None:
            return None
        guided_S = self._rows.guided_C[batch.rows_S] & batch.complete_S
        sequences = [batch.sequences[place] for place in np.flatnonzero(guided_S).tolist()]
        return self._masks.begin(
            [one.sampling.grammar for one in sequences if one.sampling.grammar is not None]
        )

    def sample_best(self, batch: Batch, hidden: Tensor) -> Sampled | None:
        """Take the best token of each sequence without computing all logits.

        Returns:
            ``None`` if the runner cannot, a sequence asks for anything else than its best token,
            or a score is not finite: :meth:`sample` then does the work, and says what is wrong.
        """
        if self._best_tokens is None or not self._rows.plain_C[batch.rows_S].all():
            return None
        places_R = np.flatnonzero(batch.complete_S)
        if not len(places_R):
            return Sampled(places_R=places_R, token_ids=[])
        best_R, scores_R = self._best_tokens(_last_hidden(batch, places_R, hidden))
        if not all(map(isfinite, scores_R.tolist())):
            return None
        return Sampled(places_R=places_R, token_ids=best_R.tolist())

    def sample_top(self, batch: Batch, hidden: Tensor) -> Sampled | None:
        """Sample from the best logits of each sequence, which ranks exchange instead of all.

        Returns:
            ``None`` if a sequence asks for more, as in :meth:`sample_best`.
        """
        runner, sampler = self._runner, self._sampler
        if not isinstance(runner, SupportsTopLogits) or not isinstance(sampler, SharedSampler):
            return None
        places_R = np.flatnonzero(batch.complete_S)
        rows = [batch.sequences[place].sampling for place in places_R.tolist()]
        if not rows or [*self._special(batch)] or not all(map(sampler.needs_best, rows)):
            return None
        logits_RK, tokens_RK = runner.top_logits(
            _last_hidden(batch, places_R, hidden), sampler.num_best
        )
        if not all(map(isfinite, logits_RK[:, 0].tolist())):
            return None
        tokens = sampler.sample_best(logits_RK, tokens_RK, rows)
        sampled = Sampled(places_R=places_R, token_ids=tokens.token_ids)
        return _without_failed(sampled, batch, tokens.failed) if tokens.failed else sampled

    def sample(self, batch: Batch, hidden: Tensor) -> Sampled:
        """Sample a token for each sequence, or several where it fans out; none for beams."""
        sampled_S = batch.complete_S.copy()
        sampled_S[self._beams(batch)] = False
        places_R = np.flatnonzero(sampled_S)
        if not len(places_R):
            return Sampled(places_R=places_R, token_ids=[])
        sequences = [batch.sequences[place] for place in places_R.tolist()]
        rows = [sequence.sampling for sequence in sequences]
        if any(sequence.fan_out > 1 for sequence in sequences):
            places_R = np.repeat(places_R, [sequence.fan_out for sequence in sequences])
            rows = [row for sequence in sequences for row in sequence.fan_out_rows()]
        logits = self._runner.logits(_last_hidden(batch, places_R, hidden))
        tokens = self._sampler.sample(logits, rows)
        sampled = Sampled(places_R=places_R, token_ids=tokens.token_ids, logprobs=tokens.logprobs)
        return _without_failed(sampled, batch, tokens.failed) if tokens.failed else sampled

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


def _without_failed(sampled: Sampled, batch: Batch, failed: dict[int, str]) -> Sampled:
    """Leave out every token of a sequence of which one row failed; ``failed``: reasons by row."""
    ids = [batch.sequences[place].id for place in sampled.places_R.tolist()]
    reasons = {ids[row]: reason for row, reason in failed.items()}
    kept = [row for row, seq_id in enumerate(ids) if seq_id not in reasons]
    logprobs = sampled.logprobs
    return Sampled(
        places_R=sampled.places_R[kept],
        token_ids=[sampled.token_ids[row] for row in kept],
        logprobs=[logprobs[row] for row in kept] if logprobs is not None else None,
        failed=reasons,
    )


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """The tokens that a step samples for the sequences at ``places_R`` of its batch."""

    finish: Callable[[Tensor], None]
    """Samples from hidden states [R, hidden] and queues the copy to the host; to be launched. Of a
    step that has taken its best tokens it takes what :meth:`DeviceSampler.take_best` returned."""
    places_R: NDArray[np.int64]
    results_2R: Tensor
    """[2, R] int32 on the host: tokens, and the bits of their rows' greatest logits."""
    buffer: Tensor
    """The pinned memory that these are in."""


class DeviceSampler:
    """Samples for sequences in rows below ``num_rows``."""

    def __init__(
        self,
        accelerator: Accelerator,
        runner: Runner,
        rows: SequenceRows,
        *,
        num_rows: int,
        seed: int,
        communicator: Communicator | None = None,
    ) -> None:
        self._accelerator = accelerator
        self._communicator = communicator
        self._runner = runner
        self._rows = rows
        self._seed = seed
        self.no_target = num_rows
        """The row that gets tokens which are not wanted."""
        self.newest_C = torch.zeros(num_rows + 1, dtype=torch.int64, device=accelerator.device)
        """The token that was sampled last for each row."""
        self._results = PinnedBuffers(accelerator, 2 * num_rows, torch.int32)

    def known(self, tokens_B: Tensor, sources_B: Tensor) -> Tensor:
        """Return ``tokens_B``, or the newest token of row ``sources_B`` where that is not < 0."""
        newest_B = self.newest_C.index_select(0, sources_B.clamp_min(0))
        return torch.where(sources_B < 0, tokens_B, newest_B)

    def is_greedy(self, batch: Batch) -> bool:
        """Return True if every sequence asks for its best token and nothing else."""
        return bool(self._rows.plain_C[batch.rows_S].all())

    def take_best(self, hidden_RH: Tensor, targets_R: Tensor) -> Tensor:
        """Sample the best token of each row for the sequences in rows ``targets_R``; return tokens
        and the bits of their logits [2, R] int32. It may be captured in a graph."""
        runner = self._runner
        if isinstance(runner, SupportsBestTokens):
            tokens_R, peaks_R = runner.best_tokens(hidden_RH)
        else:
            logits_RV = runner.logits(hidden_RH)
            tokens_R = best_token(logits_RV)
            peaks_R = logits_RV.gather(1, tokens_R[:, None])[:, 0]
        return self._keep(tokens_R, peaks_R.float(), targets_R)

    def prepare(
        self,
        batch: Batch,
        places_R: NDArray[np.int64],
        targets_R: Tensor,
        *,
        num_taken: int | None = None,
    ) -> DeviceSample:
        """Prepare to sample for these sequences of a step whose model is launched already.

        Args:
            targets_R: their rows; ``no_target`` for tokens that are not wanted.
            num_taken: rows of which the step takes the best tokens itself, as many or more.
        """
        params_5R = None if num_taken is not None else self._params(batch, places_R)
        num_rows = len(places_R) if num_taken is None else num_taken
        buffer = self._results.take()
        results_2R = buffer[: 2 * num_rows].view(2, -1)

        def finish(made: Tensor) -> None:
            if num_taken is not None:
                made_2R = made
            elif params_5R is None:
                made_2R = self.take_best(made, targets_R)
            else:
                sampled = device_sample(self._runner.logits(made), _device_params(params_5R))
                if self._communicator is not None:  # sums may be rounded in another order there
                    self._communicator.broadcast(sampled.tokens_R)
                made_2R = self._keep(sampled.tokens_R, sampled.peaks_R, targets_R)
            results_2R.copy_(made_2R, non_blocking=True)

        return DeviceSample(finish, places_R, results_2R[:, : len(places_R)], buffer)

    def _keep(self, tokens_R: Tensor, peaks_R: Tensor, targets_R: Tensor) -> Tensor:
        self.newest_C.index_copy_(0, targets_R, tokens_R)
        return torch.stack((tokens_R.int(), peaks_R.view(torch.int32)))

    def read(self, sample: DeviceSample, batch: Batch) -> tuple[list[int], dict[SeqId, str]]:
        """Return what was sampled for the complete sequences of the batch, in order, and why some
        of them failed; the device is done with ``sample``."""
        tokens_R, bits_R = sample.results_2R
        failed = {
            batch.sequences[int(sample.places_R[row])].id: reason
            for row, reason in unfit_rows(bits_R.view(torch.float32)).items()
        }
        token_ids: list[int] = tokens_R.tolist()
        wanted_R = batch.complete_S[sample.places_R]
        if not wanted_R.all():
            token_ids = [token_ids[row] for row in np.flatnonzero(wanted_R).tolist()]
            incomplete = {batch.sequences[n].id for n in np.flatnonzero(~batch.complete_S).tolist()}
            failed = {seq_id: why for seq_id, why in failed.items() if seq_id not in incomplete}
        return token_ids, failed

    def give_back(self, sample: DeviceSample) -> None:
        """Let another step have the pinned memory of ``sample``."""
        self._results.give_back(sample.buffer)

    def _params(self, batch: Batch, places_R: NDArray[np.int64]) -> Tensor | None:
        """Return [5, R] float64 in the order of :class:`DeviceParams`; ``None``: all greedy."""
        if self._rows.plain_C[batch.rows_S[places_R]].all():
            return None
        numbers = []
        for place in places_R.tolist():
            row = batch.sequences[place].sampling
            if not row.sampled:
                numbers.append((0.0, 0.0, 0.0, 1.0, 0.0))
                continue
            asked, position = row.sampling, int(self._rows.num_tokens_C[batch.rows_S[place]])
            numbers.append(
                (
                    min(asked.temperature, MAX_TEMPERATURE),
                    asked.min_p,
                    float(asked.top_k),
                    asked.top_p,
                    uniform_at(row, position, self._seed),
                )
            )
        return self._accelerator.upload(np.ascontiguousarray(np.array(numbers).T))


def _device_params(params_5R: Tensor) -> DeviceParams:
    temperature, min_p, top_k, top_p, uniform = params_5R.unbind(0)
    return DeviceParams(
        temperature=temperature.float(),
        min_p=min_p.float(),
        top_k=top_k.int(),
        top_p=top_p.float(),
        uniform=uniform,
    )
