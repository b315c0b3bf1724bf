"""Random sampling: one uniform number per row, through the inverse of the cumulative distribution.

Filters come in vLLM's order: temperature, min_p, top_k, top_p; of equal logits, lower ids are kept
first. With ``top_k`` or ``top_p`` the cumulative sum runs over what is kept, best first; without
them, over the vocabulary in the order of ids. What is kept is searched among the K best tokens of a
row, with growing K, so that no row is sorted whole unless it must be. The K that is enough depends
on the row alone, and so does the token sampled. Our own kernel for CPUs needs one pass over a row.

Shapes: R rows, V vocabulary, M chunks of 512 tokens, P = 512 M padded vocabulary, K best tokens of
a row, N columns of F entries that a row is folded into.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from paged_backends.sampling.row import MAX_TEMPERATURE, Row

_FOLD = 16


def top_logits(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` best logits of each row and their ids [R, K], best first.

    Equal logits are in the order of their ids. If the last one returned ties with one left out,
    which of them is returned is not defined: only entries above the last value are certain to be
    the row's best, unless ``count`` is V or more, when the whole row is returned.
    """
    vocab_size = logits.shape[1]
    if count >= vocab_size:
        ranked = torch.sort(logits, dim=-1, descending=True, stable=True)
        return ranked.values, ranked.indices
    num_columns = vocab_size // _FOLD
    if num_columns < 2 * count:
        top = logits.topk(count, dim=-1, sorted=False)
        return _ordered(top.values, top.indices)
    # A row's K best lie in the K columns whose maxima are largest: an entry of any other column is
    # exceeded or equalled by K of those maxima. One cheap pass then leaves little to rank.
    num_folded = num_columns * _FOLD
    folded = logits[:, :num_folded].reshape(-1, _FOLD, num_columns)
    columns = folded.amax(1).topk(count, dim=-1, sorted=False).indices
    offsets = torch.arange(0, num_folded, num_columns, device=logits.device)[:, None]
    pool = (columns[:, None, :] + offsets).flatten(1)
    rest = torch.arange(num_folded, vocab_size, device=logits.device)
    pool = torch.cat((pool, rest.expand(len(pool), -1)), dim=1)
    top = logits.gather(1, pool).topk(count, dim=-1, sorted=False)
    return _ordered(top.values, pool.gather(1, top.indices))


def _ordered(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by falling value, then by rising id."""
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def best_token(logits: Tensor) -> Tensor:
    """Return the id of each row's best entry [R] int64: the lowest id of equals, a NaN if any."""
    if logits.device.type == "cpu":  # numpy's is vectorised: ten times as fast as torch's
        return torch.from_numpy(logits.detach().float().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


_CHUNK = 512
_COUNTS = (64, 1024, 8192)
"""Values of K that are tried before the whole row is sorted."""

Uniform = Callable[[Row], float]
"""Returns the uniform number in [0, 1) that selects a row's token."""

RandomSample = Callable[[Tensor, list[Row], Uniform], list[int]]
"""Samples a token for each row of logits [R, V] of any precision, which are only read; their maxima
are finite."""


@dataclass(slots=True)
class SamplingBatch:
    """Rows that are sampled together, with their parameters as vectors [R] float64."""

    logits: Tensor
    rows: list[Row]
    uniform: Uniform
    peak: Tensor
    """Largest logit."""
    temperature: Tensor
    min_p: Tensor
    top_p: Tensor
    top_k: Tensor
    """V if there is none."""

    @classmethod
    def of(cls, logits: Tensor, rows: list[Row], uniform: Uniform) -> SamplingBatch:
        vocab_size = logits.shape[1]
        columns = torch.tensor(
            [
                (
                    min(params.temperature, MAX_TEMPERATURE),
                    params.min_p,
                    params.top_p,
                    params.top_k or vocab_size,
                )
                for params in (row.sampling for row in rows)
            ],
            dtype=torch.float64,
            device=logits.device,
        )
        temperature, min_p, top_p, top_k = columns.unbind(1)
        peak = logits.amax(-1).double()
        return cls(logits, rows, uniform, peak, temperature, min_p, top_p, top_k)

    def select(self, places: list[int]) -> SamplingBatch:
        """Return the rows at ``places``."""
        if len(places) == len(self.rows):
            return self
        at = torch.tensor(places, device=self.logits.device)
        parts = (self.peak, self.temperature, self.min_p, self.top_p, self.top_k)
        rows = [self.rows[place] for place in places]
        return SamplingBatch(self.logits[at], rows, self.uniform, *(part[at] for part in parts))

    def uniforms(self) -> Tensor:
        """Return a uniform number per row [R, 1] float64."""
        numbers = [[self.uniform(row)] for row in self.rows]
        return torch.tensor(numbers, dtype=torch.float64, device=self.logits.device)


def random_sample(logits: Tensor, rows: list[Row], uniform: Uniform) -> list[int]:
    """Sample a token for each row of ``logits`` [R, V], which are only read; maxima are finite."""
    batch = SamplingBatch.of(logits.float(), rows, uniform)
    vocab_size = logits.shape[1]
    unfiltered: list[int] = []
    top_p: list[int] = []
    top_k: list[int] = []
    for place, row in enumerate(rows):
        if 0 < row.sampling.top_k < vocab_size:
            top_k.append(place)
        else:
            (top_p if row.sampling.top_p < 1 else unfiltered).append(place)
    sampled: dict[int, int] = {}
    for places, sample in (
        (unfiltered, _sample_any),
        (top_p, _sample_top_p),
        (top_k, _sample_top_k),
    ):
        if places:
            sampled |= zip(places, sample(batch.select(places)), strict=True)
    return [sampled[place] for place in range(len(rows))]


def _sample_any(batch: SamplingBatch) -> list[int]:
    """Sample where at most ``min_p`` filters."""
    weights = _weights(batch)
    token_ids: list[int] = _search_chunks(weights, _mass(weights), batch.uniforms()).tolist()
    return token_ids


def _sample_top_k(batch: SamplingBatch) -> list[int]:
    """Sample where ``top_k`` filters, and perhaps the others."""
    return _sample_best_first(batch, None)


def _sample_top_p(batch: SamplingBatch) -> list[int]:
    """Sample where ``top_p`` filters, without ``top_k``."""
    return _sample_best_first(batch, _mass(_weights(batch))[:, -1:])


def _weights(batch: SamplingBatch) -> Tensor:
    """Return unnormalised probabilities [R, P] float32: 1 for the best token, 0 if filtered."""
    weights = batch.logits - batch.peak.float()[:, None]
    missing = -weights.shape[1] % _CHUNK
    if missing:
        weights = pad(weights, (0, missing), value=float("-inf"))
    weights.div_(batch.temperature.float()[:, None]).exp_()
    if any(row.sampling.min_p for row in batch.rows):
        weights.masked_fill_(weights < batch.min_p.float()[:, None], 0.0)
    return weights


def _chunks(weights: Tensor) -> Tensor:
    return weights.view(len(weights), -1, _CHUNK)


def _mass(weights: Tensor) -> Tensor:
    """Return cumulative sums over chunks [R, M] float64."""
    return _chunks(weights).sum(-1).cumsum(-1, dtype=torch.float64)


def _search_chunks(weights: Tensor, mass: Tensor, uniforms: Tensor) -> Tensor:
    """Return tokens [R]: first the chunk that the number falls into is found, then the token."""
    chunk, below = _search(mass, uniforms)
    rows = torch.arange(len(weights), device=weights.device)
    inside = _chunks(weights)[rows, chunk[:, 0]].double().cumsum(-1)
    share = (uniforms * mass[:, -1:] - below) / (mass.gather(1, chunk) - below)
    token, _ = _search(inside, share.clamp(0, 1))
    return (chunk * _CHUNK + token)[:, 0]


def _search(sums: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return where cumulative sums first exceed a share of the last one, and the sum before that.

    Entries of weight 0 are never found: their sum equals that of the entry before.
    """
    total = sums[:, -1:]
    target = torch.minimum(share * total, total.nextafter(torch.zeros_like(total)))
    place = torch.searchsorted(sums, target, right=True)
    below = sums.gather(1, (place - 1).clamp_min(0)) * (place > 0)
    return place, below


def _sample_best_first(batch: SamplingBatch, totals: Tensor | None) -> list[int]:
    """Sample among the K best tokens of a row where they are enough, else among the whole row.

    Args:
        totals: the sum of all weights that pass ``min_p`` [R, 1], for rows without ``top_k``.
    """
    vocab_size = batch.logits.shape[1]
    sampled: dict[int, int] = {}
    pending = list(range(len(batch.rows)))
    for count in [count for count in _COUNTS if count < vocab_size]:
        if not pending:
            break
        tokens, enough = _sample_among(batch.select(pending), _at(totals, pending), count)
        sampled |= zip(pending, tokens, strict=True)
        pending = [place for place, done in zip(pending, enough, strict=True) if not done]
    if pending:
        tokens, _ = _sample_among(batch.select(pending), None, vocab_size)
        sampled |= zip(pending, tokens, strict=True)
    return [sampled[place] for place in range(len(batch.rows))]


def _at(totals: Tensor | None, places: list[int]) -> Tensor | None:
    if totals is None or len(places) == len(totals):
        return totals
    return totals[torch.tensor(places, device=totals.device)]


def _sample_among(
    batch: SamplingBatch, total: Tensor | None, count: int
) -> tuple[list[int], list[bool]]:
    """Sample among the ``count`` best tokens of each row.

    Args:
        total: as in :func:`_sample_best_first`.

    Returns:
        The tokens, and whether ``count`` is certain to be enough for each row.
    """
    values, ids = top_logits(batch.logits, count)
    count = values.shape[1]
    weights = ((values.double() - batch.peak[:, None]) / batch.temperature[:, None]).exp()
    sums = weights.cumsum(-1)
    num_kept = (weights >= batch.min_p[:, None]).sum(-1, keepdim=True)
    num_kept = torch.minimum(num_kept, batch.top_k.long()[:, None])
    known = (num_kept < count) | (batch.top_k[:, None] <= count)
    if total is None:
        total = sums.gather(1, num_kept.clamp_max(count) - 1)
    else:
        known = torch.ones_like(known)
    reach = batch.top_p[:, None] * total
    num_nucleus = 1 + (sums[:, :-1] < reach).sum(-1, keepdim=True)
    last = torch.minimum(num_kept, num_nucleus).clamp_max(count) - 1
    enough = known & (values.gather(1, last) > values[:, -1:])
    place, _ = _search(sums.clamp_max(sums.gather(1, last)), batch.uniforms())
    return ids.gather(1, place)[:, 0].tolist(), enough[:, 0].tolist()


def kernel_random_sample(sample: Callable[[Tensor, Tensor], Tensor]) -> RandomSample:
    """Return a function that samples with ``sample``, a kernel.

    Args:
        sample: as :meth:`~paged_backends.kernels.cpu.tensor_kernels.Kernels.sample`.
    """

    def random_sample(logits: Tensor, rows: list[Row], uniform: Uniform) -> list[int]:
        params = [
            (asked.temperature, asked.min_p, asked.top_k, asked.top_p, uniform(row))
            for row, asked in ((row, row.sampling) for row in rows)
        ]
        tokens: list[int] = sample(logits, torch.tensor(params, dtype=torch.float64)).tolist()
        return tokens

    return random_sample
