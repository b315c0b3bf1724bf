"""Drawing the next token of every row of a batch.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from paged_backends.sampling.choice import Choose, choose
from paged_backends.sampling.edits import edit
from paged_backends.sampling.noise import uniform
from paged_backends.sampling.ranking import best_token, leading
from paged_backends.sampling.row import Row

_SLAB_ON_CPU = 1 << 20
_SLAB_ELSEWHERE = 1 << 26
"""Logits worked on at a time: on a CPU what its cache holds, elsewhere what memory can spare."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What was drawn, in the order of the rows."""

    token_ids: list[int]
    logprobs: list[dict[int, float] | None] | None
    """Where anyone asked: by token id, the drawn one first, then the best in order."""
    failed: dict[int, str]
    """Rows that could not be served as asked, and why; their token ids mean nothing."""


class Sampler:
    """Chooses tokens for whole batches, as
    :class:`~paged_core.sampling_params.SamplingParams` says.

    A draw depends on the row's logits, its parameters, the seed, the sequence's index and the
    position, and never on what else is in the batch or on what was drawn before.

    Log-probabilities are those of the model: the log-softmax of its own logits, before any
    processor, bias, penalty, temperature or filter, as vLLM V1 reports them.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        seed: int,
        eos_token_ids: frozenset[int],
        device: torch.device | str,
        choose: Choose = choose,
    ) -> None:
        """``choose``: how tokens are drawn by chance."""
        self._vocab_size = vocab_size
        self._seed = seed
        self._eos_token_ids = eos_token_ids
        on_cpu = torch.device(device).type == "cpu"
        elements = _SLAB_ON_CPU if on_cpu else _SLAB_ELSEWHERE
        self._num_slab_rows = max(1, elements // vocab_size)
        self._choose_tokens = choose

    def draw(self, logits: Tensor, rows: Sequence[Row], /) -> Draws:
        """Draw one token per row of ``logits`` [R, V] float32, which is left as it is.

        Several rows of a batch may belong to one sequence that fans out: give each its ``index``.

        Raises:
            ValueError: the shapes do not fit each other.
        """
        if logits.shape != (len(rows), self._vocab_size):
            raise ValueError(
                f"logits of shape {tuple(logits.shape)} do not fit {len(rows)} rows over a "
                f"vocabulary of {self._vocab_size}"
            )
        if not rows:
            return Draws([], None, {})
        best = best_token(logits)
        peaks = logits.gather(1, best[:, None])[:, 0]
        if all(row.plain for row in rows):
            return Draws(best.tolist(), None, _unfit(peaks))

        places = [place for place, row in enumerate(rows) if row.edited or row.may_not_end]
        problems: dict[int, str] = {}
        edited = logits[:0]
        if places:
            at = torch.tensor(places, device=logits.device)
            edited = logits.index_select(0, at)
            reasons = edit(edited, [rows[place] for place in places], self._eos_token_ids)
            problems = {places[number]: reason for number, reason in reasons.items()}
            best[at] = best_token(edited)
            peaks[at] = edited.gather(1, best[at][:, None])[:, 0]
        failed = {**_unfit(peaks), **problems}

        token_ids: list[int] = best.tolist()
        sampled = [row.sampled and place not in failed for place, row in enumerate(rows)]
        touched = {place: number for number, place in enumerate(places) if sampled[place]}
        untouched = {
            place: place for place in range(len(rows)) if sampled[place] and place not in touched
        }
        self._choose(logits, untouched, rows, token_ids)
        self._choose(edited, touched, rows, token_ids)
        return Draws(token_ids, self._logprobs(logits, rows, token_ids), failed)

    def rank(
        self, logits: Tensor, rows: Sequence[Row], counts: Sequence[int], /
    ) -> tuple[list[dict[int, float]], dict[int, str]]:
        """Find the best continuations of each row, for beam search, and draw none.

        Processors, bias and penalties change log-probabilities here, not logits, and what they
        leave is not normalised again: beam search in ``transformers`` applies them so.

        Args:
            logits: the model's own [R, V] float32; left as they are.
            counts: continuations to find, per row.

        Returns:
            Log-probabilities by token id, best first, without what is ruled out; and for each row
            that cannot be served, its place and the reason.
        """
        result: list[dict[int, float]] = []
        failed: dict[int, str] = {}
        for part in self._slabs(len(rows)):
            some, start = rows[part], part.start
            reasons = _unfit(logits[part].amax(-1))
            logprobs = logits[part].log_softmax(-1)
            places = [place for place, row in enumerate(some) if row.edited or row.may_not_end]
            if places:
                at = torch.tensor(places, device=logits.device)
                edited = logprobs.index_select(0, at)
                problems = edit(edited, [some[place] for place in places], self._eos_token_ids)
                logprobs[at] = edited
                reasons |= {places[number]: reason for number, reason in problems.items()}
                reasons |= {
                    place: reason
                    for place, reason in _unfit(logprobs.amax(-1)).items()
                    if logprobs[place].amax() != float("-inf")
                }
            failed |= {start + place: reason for place, reason in reasons.items()}
            values, ids = _best(logprobs, min(max(counts[part]), logprobs.shape[1]))
            for best, found, count in zip(ids.tolist(), values.tolist(), counts[part], strict=True):
                ranked = list(zip(best, found, strict=True))[:count]
                result.append({token: value for token, value in ranked if value > float("-inf")})
        return result, failed

    def logprobs_of(
        self, logits: Tensor, token_ids: Sequence[int], num_top: int, /
    ) -> list[dict[int, float]]:
        """Return log-probabilities of the given tokens, one per row, and of the best ones.

        Args:
            logits: the model's own logits [R, V] float32.
            token_ids: one per row; it stands first in its row's dictionary.
            num_top: how many of the best tokens follow, best first, equals by their ids.
        """
        result: list[dict[int, float]] = []
        for part in self._slabs(len(token_ids)):
            result += _logprobs(logits[part], token_ids[part], num_top)
        return result

    def _slabs(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self._num_slab_rows):
            yield slice(start, min(start + self._num_slab_rows, count))

    def _choose(
        self,
        logits: Tensor,
        numbers: dict[int, int],
        rows: Sequence[Row],
        token_ids: list[int],
    ) -> None:
        """Draw by chance for each place in ``numbers``, from the row of ``logits`` beside it."""
        places = list(numbers)
        for part in self._slabs(len(places)):
            some = places[part]
            own = _rows_of(logits, [numbers[place] for place in some])
            drawn = self._choose_tokens(own, [rows[place] for place in some], self._noise)
            for place, token_id in zip(some, drawn, strict=True):
                token_ids[place] = token_id

    def _noise(self, row: Row) -> float:
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
            for part in self._slabs(len(places)):
                some = places[part]
                tokens = [token_ids[place] for place in some]
                entries = _logprobs(_rows_of(logits, some), tokens, num_top)
                for place, entry in zip(some, entries, strict=True):
                    result[place] = entry
        return result


def _rows_of(logits: Tensor, numbers: list[int]) -> Tensor:
    """Return these rows, as a view where they lie together; ``numbers`` rise."""
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return logits[numbers[0] : numbers[-1] + 1]
    return logits[torch.tensor(numbers, device=logits.device)]


def _unfit(peaks: Tensor) -> dict[int, str]:
    """Say which rows nothing can be drawn from, by their largest logits."""
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
                "every token is ruled out: all logits are -infinity once processors, biases and "
                "min_tokens are applied"
            )
    return problems


def _logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[dict[int, float]]:
    norm = logits.logsumexp(-1, keepdim=True)
    tokens = torch.tensor(token_ids, device=logits.device)[:, None]
    own = (logits.gather(1, tokens) - norm)[:, 0].tolist()
    result = [{token_id: value} for token_id, value in zip(token_ids, own, strict=True)]
    num_top = min(num_top, logits.shape[1])
    if num_top:
        values, ids = _best(logits, num_top)
        values = values - norm
        for entry, best, logprobs in zip(result, ids.tolist(), values.tolist(), strict=True):
            entry.update(zip(best, logprobs, strict=True))
    return result


def _best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` best of each row; where the last of them ties, the lowest ids."""
    values, ids = leading(logits, max(64, 2 * count))
    certain = (values[:, count - 1] > values[:, -1]).tolist()
    values, ids = values[:, :count], ids[:, :count]
    doubtful = [place for place, certain in enumerate(certain) if not certain]
    if doubtful and max(64, 2 * count) < logits.shape[1]:
        at = torch.tensor(doubtful, device=logits.device)
        whole, whole_ids = leading(logits[at], logits.shape[1])
        values[at], ids[at] = whole[:, :count], whole_ids[:, :count]
    return values, ids
