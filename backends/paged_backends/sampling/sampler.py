"""Sampling the next token of every row of a batch.

Shapes: R rows, V vocabulary, E rows whose logits are processed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan

import torch
from torch import Tensor

from paged_backends.sampling.logits_processing import process_logits
from paged_backends.sampling.random_sampling import (
    RandomSample,
    best_token,
    random_sample,
    top_logits,
)
from paged_backends.sampling.row import Row, uniform
from paged_core.errors import error_text
from paged_core.step import TokenLogprobs

_MAX_LOGITS_ON_CPU = 1 << 20
_MAX_LOGITS_ELSEWHERE = 1 << 24
"""Logits worked on at once in float32: on a CPU what its cache holds, elsewhere 64 MiB."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens sampled, in the order of the rows."""

    token_ids: list[int]
    logprobs: list[dict[int, float] | None] | None
    """If any row asks for them: by token id, the sampled one first, then the best in order."""
    failed: dict[int, str]
    """Why rows could not be served as asked, by row; their token ids mean nothing."""


@dataclass(frozen=True, slots=True)
class _Processed:
    """A copy of the rows that ask for processing of their logits."""

    logits: Tensor
    """[E, V]."""
    places: list[int]
    """Which of all rows they are [E], rising."""
    failed: dict[int, str]
    """Why rows could not be processed as asked, by their places."""


class Sampler:
    """Samples for whole batches, as :class:`~paged_core.sampling_params.SamplingParams` says.

    A token depends on the row's logits, its parameters, the seed, the sequence's index and the
    position, and never on what else is in the batch or on what was sampled before.

    Log-probabilities are those of the model: the log-softmax of its own logits, before any
    processor, bias, penalty, temperature or filter, as vLLM V1 reports them.

    Logits come in the dtype of the model. What is computed with them is computed in float32, some
    rows at a time.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        seed: int,
        eos_token_ids: frozenset[int],
        device: torch.device | str,
        random_sample: RandomSample = random_sample,
    ) -> None:
        """``random_sample``: samples rows that are not greedy."""
        self._vocab_size = vocab_size
        self._seed = seed
        self._eos_token_ids = eos_token_ids
        on_cpu = torch.device(device).type == "cpu"
        max_logits = _MAX_LOGITS_ON_CPU if on_cpu else _MAX_LOGITS_ELSEWHERE
        self._max_rows = max(1, max_logits // vocab_size)
        self._random_sample = random_sample

    def sample(self, logits: Tensor, rows: Sequence[Row], /) -> SampledTokens:
        """Sample one token per row of ``logits`` [R, V], which are only read.

        Several rows may belong to one sequence that fans out; each has an ``index`` of its own. If
        anything raises, rows are sampled one by one, so that only those fail that raise alone.

        Raises:
            ValueError: the shapes do not fit each other.
        """
        if logits.shape != (len(rows), self._vocab_size):
            raise ValueError(
                f"logits of shape {tuple(logits.shape)} do not fit {len(rows)} rows over a "
                f"vocabulary of {self._vocab_size}"
            )
        if not rows:
            return SampledTokens([], None, {})
        try:
            return self._sample_all(logits, rows)
        except Exception as error:  # noqa: BLE001 - a parameter of one row that cannot be served
            if len(rows) == 1:
                return SampledTokens([0], None, {0: f"it cannot be sampled: {error_text(error)}"})
            return _join([self.sample(logits[i : i + 1], [row]) for i, row in enumerate(rows)])

    def _sample_all(self, logits: Tensor, rows: Sequence[Row]) -> SampledTokens:
        best, peaks = self._best(logits)
        if all(row.plain for row in rows):
            return SampledTokens(best.tolist(), None, unfit_rows(peaks))
        processed = self._process(logits, rows)
        if processed.places:
            at = torch.tensor(processed.places, device=logits.device)
            best[at], peaks[at] = self._best(processed.logits)
        failed = {**unfit_rows(peaks), **processed.failed}

        token_ids: list[int] = best.tolist()
        sampled = [place for place, row in enumerate(rows) if row.sampled and place not in failed]
        for place, token_id in self._sample(logits, processed, rows, sampled).items():
            token_ids[place] = token_id
        return SampledTokens(token_ids, self._logprobs(logits, rows, token_ids), failed)

    def rank(
        self, logits: Tensor, rows: Sequence[Row], counts: Sequence[int], /
    ) -> tuple[list[dict[int, float]], dict[int, str]]:
        """Find the best continuations of each row, for beam search; sample no token.

        Processors, bias and penalties change log-probabilities here, not logits, and the result is
        not normalised again: beam search in ``transformers`` applies them so.

        Args:
            logits: the model's own [R, V]; only read.
            counts: continuations to find, per row.

        Returns:
            Log-probabilities by token id, best first, without those of -inf; and why rows cannot
            be served, by row.
        """
        result: list[dict[int, float]] = []
        failed: dict[int, str] = {}
        for part in self._slices(len(rows)):
            found, reasons = self._rank(logits[part].float(), rows[part], counts[part])
            result += found
            failed |= {part.start + place: reason for place, reason in reasons.items()}
        return result, failed

    def _rank(
        self, logits: Tensor, rows: Sequence[Row], counts: Sequence[int]
    ) -> tuple[list[dict[int, float]], dict[int, str]]:
        failed = unfit_rows(logits.amax(-1))
        logprobs = logits.log_softmax(-1)
        processed = self._process(logprobs, rows)
        if processed.places:
            logprobs[torch.tensor(processed.places, device=logits.device)] = processed.logits
            peaks = logprobs.amax(-1)
            unfit = {place: why for place, why in unfit_rows(peaks).items() if peaks[place] != -inf}
            failed |= processed.failed | unfit
        values, ids = _best(logprobs, min(max(counts), logprobs.shape[1]))
        found = []
        for best, best_logprobs, count in zip(ids.tolist(), values.tolist(), counts, strict=True):
            ranked = list(zip(best, best_logprobs, strict=True))[:count]
            found.append({token: value for token, value in ranked if value > -inf})
        return found, failed

    def logprobs_of(
        self, logits: Tensor, token_ids: Sequence[int], num_top: int, /
    ) -> list[dict[int, float]]:
        """Return log-probabilities of the given tokens, one per row, and of the best ones.

        Args:
            logits: the model's own logits [R, V].
            token_ids: one per row; the first in its row's dictionary.
            num_top: how many of the best tokens follow, best first, equals in the order of ids;
                -1: all of them.
        """
        result: list[dict[int, float]] = []
        for part in self._slices(len(token_ids)):
            result += _logprobs(logits[part].float(), token_ids[part], num_top)
        return result

    def _slices(self, num_rows: int) -> Iterator[slice]:
        """Yield slices of rows that are worked on at once."""
        for start in range(0, num_rows, self._max_rows):
            yield slice(start, min(start + self._max_rows, num_rows))

    def _best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best token of each row, and its logit in float32."""
        best = torch.cat([best_token(logits[part]) for part in self._slices(len(logits))])
        return best, logits.gather(1, best[:, None])[:, 0].float()

    def _process(self, logits: Tensor, rows: Sequence[Row]) -> _Processed:
        """Process a float32 copy of the rows that ask for it, of ``logits`` [R, V]."""
        places = [place for place, row in enumerate(rows) if row.processed or row.below_min_tokens]
        if not places:
            return _Processed(logits[:0], [], {})
        own = logits.index_select(0, torch.tensor(places, device=logits.device)).float()
        failed = process_logits(own, [rows[place] for place in places], self._eos_token_ids)
        return _Processed(own, places, {places[row]: reason for row, reason in failed.items()})

    def _sample(
        self, logits: Tensor, processed: _Processed, rows: Sequence[Row], places: list[int]
    ) -> dict[int, int]:
        """Sample at random for the rows at ``places``; return the tokens by place."""
        copies = {place: row for row, place in enumerate(processed.places)}
        own = [place for place in places if place not in copies]
        changed = [place for place in places if place in copies]
        return {
            **self._sample_rows(logits, own, rows, own),
            **self._sample_rows(
                processed.logits, [copies[place] for place in changed], rows, changed
            ),
        }

    def _sample_rows(
        self, logits: Tensor, numbers: list[int], rows: Sequence[Row], places: list[int]
    ) -> dict[int, int]:
        """Sample for each of ``places`` from the row of ``logits`` whose number is beside it."""
        sampled: dict[int, int] = {}
        for part in self._slices(len(places)):
            chosen = [rows[place] for place in places[part]]
            token_ids = self._random_sample(_rows_of(logits, numbers[part]), chosen, self._uniform)
            sampled |= zip(places[part], token_ids, strict=True)
        return sampled

    def _uniform(self, row: Row) -> float:
        return uniform(row, self._seed)

    def _logprobs(
        self, logits: Tensor, rows: Sequence[Row], token_ids: list[int]
    ) -> list[dict[int, float] | None] | None:
        asked: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            num_top = row.sampling.needed_logprobs
            if num_top is not None:
                asked.setdefault(num_top, []).append(place)
        if not asked:
            return None
        result: list[dict[int, float] | None] = [None] * len(rows)
        for num_top, places in asked.items():
            for part in self._slices(len(places)):
                some = places[part]
                tokens = [token_ids[place] for place in some]
                entries = _logprobs(_rows_of(logits, some).float(), tokens, num_top)
                for place, entry in zip(some, entries, strict=True):
                    result[place] = entry
        return result


def _join(parts: Sequence[SampledTokens]) -> SampledTokens:
    """Return the tokens of rows that were sampled one by one."""
    asked = any(part.logprobs for part in parts)
    return SampledTokens(
        [token_id for part in parts for token_id in part.token_ids],
        [part.logprobs[0] if part.logprobs else None for part in parts] if asked else None,
        {place: part.failed[0] for place, part in enumerate(parts) if part.failed},
    )


def _rows_of(logits: Tensor, numbers: list[int]) -> Tensor:
    """Return these rows, as a view if they are adjacent; ``numbers`` rise."""
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return logits[numbers[0] : numbers[-1] + 1]
    return logits[torch.tensor(numbers, device=logits.device)]


def unfit_rows(peaks: Tensor) -> dict[int, str]:
    """Return why no token can be sampled from some rows, by row; ``peaks`` [R]: largest logits."""
    if bool(peaks.isfinite().all()):
        return {}
    problems = {}
    for place, peak in enumerate(peaks.tolist()):
        if isnan(peak):
            problems[place] = (
                "the logits hold NaN: the model overflowed (try another dtype), its weights are "
                "damaged, or a logits processor made them so"
            )
        elif peak == float("inf"):
            problems[place] = (
                "the logits hold infinity: the model overflowed (try another dtype), or a logits "
                "processor made them so; to force a token, rule out the others"
            )
        elif peak == float("-inf"):
            problems[place] = (
                "every token is ruled out: all logits are -infinity once processors, biases, "
                "min_tokens and structured_outputs are applied"
            )
    return problems


def _logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[dict[int, float]]:
    norm = logits.logsumexp(-1, keepdim=True)
    tokens = torch.tensor(token_ids, device=logits.device)[:, None]
    own = (logits.gather(1, tokens) - norm)[:, 0].tolist()
    ranked = zip(token_ids, own, _ranks(logits, tokens), strict=True)
    result: list[dict[int, float]] = [
        TokenLogprobs({token_id: value}, rank) for token_id, value, rank in ranked
    ]
    num_top = min(num_top, logits.shape[1]) if num_top >= 0 else logits.shape[1]
    if num_top:
        values, ids = _best(logits, num_top)
        values = values - norm
        for entry, best, logprobs in zip(result, ids.tolist(), values.tolist(), strict=True):
            entry.update(zip(best, logprobs, strict=True))
    return result


def _ranks(logits: Tensor, tokens: Tensor) -> list[int]:
    """Return the rank of one token [R, 1] in each row, from 1; equals rank by their ids."""
    own = logits.gather(1, tokens)
    before = torch.arange(logits.shape[1], device=logits.device) < tokens
    ahead = (logits > own) | ((logits == own) & before)
    ranks: list[int] = (ahead.sum(-1) + 1).tolist()
    return ranks


def _best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` best of each row [R, count]; of those that tie, the lowest ids."""
    values, ids = top_logits(logits, max(64, 2 * count))
    certain = (values[:, count - 1] > values[:, -1]).tolist()
    values, ids = values[:, :count], ids[:, :count]
    doubtful = [place for place, certain in enumerate(certain) if not certain]
    if doubtful and max(64, 2 * count) < logits.shape[1]:
        at = torch.tensor(doubtful, device=logits.device)
        whole, whole_ids = top_logits(logits[at], logits.shape[1])
        values[at], ids[at] = whole[:, :count], whole_ids[:, :count]
    return values, ids
