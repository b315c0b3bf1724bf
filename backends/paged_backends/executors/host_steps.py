"""A loaded model, and its steps run at once: apply the changes, make a batch, compute, sample.

The sequences of a step advance when all of it is done, so a step that raises leaves them as they
were for the next one.

Shapes: T tokens of S sequences in the batch, R rows of logits.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from threading import Thread
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.attention.step import StepAttention
from paged_backends.executors.accelerator import Accelerator
from paged_backends.executors.batch import Batch, BatchMaker, SequenceRows
from paged_backends.executors.host_device import ModelTimer
from paged_backends.executors.paged_cache import PagedCache
from paged_backends.executors.shared_sampling import SharedSampler
from paged_backends.grammar.masks import GrammarMasks
from paged_backends.sampling import Sampler
from paged_core.errors import blame
from paged_core.ids import SeqId
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.runner import Runner, SupportsBestTokens, SupportsTopLogits
from paged_core.step import StepInput, StepResult

_MAX_LOGITS = 1 << 25
"""Logits of a prompt held at once where its log-probabilities are asked for: 128 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Model, cache and sequences between start and close."""

    accelerator: Accelerator
    runner: Runner
    backend: AttentionBackend
    cache: PagedCache
    layers: list[LayerAttention]
    rows: SequenceRows
    batches: BatchMaker

    def apply(self, step: StepInput) -> None:
        """Apply what changed since the last step, in the order that :class:`StepInput` says."""
        rows, cache = self.rows, self.cache
        rows.remove(step.removed)
        if step.swap_out_sources:
            cache.swap_out(step.swap_out_sources, step.swap_out_targets)
        if step.swap_in_sources:
            cache.swap_in(step.swap_in_sources, step.swap_in_targets)
        if step.copy_sources:
            cache.copy(step.copy_sources, step.copy_targets)
        for new in step.added:
            rows.add(new)
        rows.edit(step.edit_ids, step.edit_indices, step.edit_blocks)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attention: AttentionBatch) -> Tensor:
        """Return hidden states [T, hidden]."""
        try:
            attend = StepAttention(self.layers, self.backend.plan(attention))
        except Exception as error:
            blame(error, "attention", self.backend)
            raise
        try:
            return self.runner.forward(tokens_T, positions_T, attend)
        except Exception as error:
            blame(error, "runner", self.runner)
            raise


class HostSteps:
    """Runs one step at a time."""

    def __init__(self, model: LoadedModel, sampler: StepSampler) -> None:
        self._model = model
        self._sampler = sampler

    def submit(self, step: StepInput) -> StepResult:
        """Run the whole step; the handle is its result."""
        started = perf_counter()
        self._model.apply(step)
        return self.run(self._model.batches.make(step), started)

    def collect(self, handle: StepResult) -> StepResult:
        """Return what :meth:`submit` computed."""
        return handle

    def run(self, batch: Batch | None, started: float) -> StepResult:
        """Run a step that was applied; all tokens of its sequences are known.

        Args:
            batch: its work; ``None``: there is none but what was applied.
            started: the time when it was begun to be applied.
        """
        accelerator = self._model.accelerator
        if batch is None:
            return StepResult(seconds={"prepare": perf_counter() - started})
        tokens_T, positions_T = map(accelerator.upload, (batch.tokens_T, batch.positions_T))
        attention = batch.attention(accelerator.upload)
        prepared = perf_counter()
        results: list[StepResult] = []

        def work() -> None:
            results.append(self._compute(batch, tokens_T, positions_T, attention))

        accelerator.compute.launch(work)
        accelerator.compute.record().wait()
        (result,) = results
        model = result.seconds["model"]
        seconds = {
            "prepare": prepared - started,
            "model": model,
            "sample": perf_counter() - prepared - model,
        }
        return replace(result, seconds=seconds)

    def _compute(
        self, batch: Batch, tokens_T: Tensor, positions_T: Tensor, attention: AttentionBatch
    ) -> StepResult:
        masks = self._sampler.begin_masks(batch)  # filled while the model runs
        try:
            timer = ModelTimer(self._model.accelerator.device)
            hidden = self._model.forward(tokens_T, positions_T, attention)
            timer.stop()
        finally:
            if masks is not None:
                masks.join()
        return replace(self._sample(batch, hidden), seconds={"model": timer.seconds()})

    def _sample(self, batch: Batch, hidden: Tensor) -> StepResult:
        """Sample for the batch, and only then advance its sequences."""
        sampler = self._sampler
        sampled = sampler.sample_best(batch, hidden)
        if sampled is None:
            sampled = sampler.sample_top(batch, hidden)
        if sampled is not None:
            result = StepResult(failed=sampled.failed)
        else:
            prompt_logprobs = sampler.prompt_logprobs(batch, hidden)
            candidates = sampler.rank(batch, hidden)
            sampled = sampler.sample(batch, hidden)
            result = StepResult(
                logprobs=sampled.logprobs,
                prompt_logprobs=prompt_logprobs,
                candidates=candidates.logprobs,
                failed=candidates.failed | sampled.failed,
            )
        self._model.rows.advance(batch, sampled.places_R, sampled.token_ids, sampled.failed)
        ids = [batch.sequences[place].id for place in sampled.places_R.tolist()]
        return replace(result, sequence_ids=ids, token_ids=sampled.token_ids)


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
        if not guided_S.any():
            return None
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
