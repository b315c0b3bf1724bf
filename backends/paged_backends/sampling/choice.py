"""Drawing a token by chance: one uniform number per row, through the inverse of its distribution.

Filters come in vLLM's order: temperature, min_p, top_k, top_p; a token that equals the last one
kept is kept or not by its id, lower ids first. Where ``top_k`` or ``top_p`` restricts the choice,
the share is sought among what is left, best first; otherwise in the order of ids. What is left is
found among the few best tokens of a row, in steps of growing width, so that no row is sorted whole
unless it must be; the width at which a row is settled depends on that row only, and so does its
draw.

Shapes: S rows, V vocabulary, P the same padded to whole chunks of C, W candidates per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from paged_backends.sampling.ranking import leading
from paged_backends.sampling.row import Row

_CHUNK = 512
_WIDTHS = (64, 1024, 8192)
_HOTTEST = 1e30
"""All tokens are alike from here on; what lies beyond float32 would divide infinity by infinity."""

Noise = Callable[[Row], float]
"""The share in [0, 1) that decides a row's token."""

Choose = Callable[[Tensor, list[Row], Noise], list[int]]
"""Draws a token for each row of finite maximum; the logits [S, V] float32 are left as they are."""


@dataclass(slots=True)
class Slab:
    """Rows that are drawn together, with their parameters as columns [S] float64."""

    logits: Tensor
    rows: list[Row]
    noise: Noise
    peak: Tensor
    """Largest logit."""
    temperature: Tensor
    min_p: Tensor
    top_p: Tensor
    top_k: Tensor
    """V where there is none."""

    @classmethod
    def of(cls, logits: Tensor, rows: list[Row], noise: Noise) -> Slab:
        vocab_size = logits.shape[1]
        columns = torch.tensor(
            [
                (
                    min(params.temperature, _HOTTEST),
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
        return cls(logits, rows, noise, peak, temperature, min_p, top_p, top_k)

    def select(self, places: list[int]) -> Slab:
        """Return the rows at ``places``."""
        if len(places) == len(self.rows):
            return self
        at = torch.tensor(places, device=self.logits.device)
        parts = (self.peak, self.temperature, self.min_p, self.top_p, self.top_k)
        rows = [self.rows[place] for place in places]
        return Slab(self.logits[at], rows, self.noise, *(part[at] for part in parts))

    def uniforms(self) -> Tensor:
        """Return one number in [0, 1) per row [S, 1] float64."""
        numbers = [[self.noise(row)] for row in self.rows]
        return torch.tensor(numbers, dtype=torch.float64, device=self.logits.device)


def choose(logits: Tensor, rows: list[Row], noise: Noise) -> list[int]:
    """Draw a token for each row of finite maximum; ``logits`` [S, V] is left as it is."""
    slab = Slab.of(logits, rows, noise)
    vocab_size = logits.shape[1]
    drawn = [0] * len(rows)
    free: list[int] = []
    nucleus: list[int] = []
    limited: list[int] = []
    for place, row in enumerate(rows):
        if 0 < row.sampling.top_k < vocab_size:
            limited.append(place)
        else:
            (nucleus if row.sampling.top_p < 1 else free).append(place)
    for places, draw in ((free, _draw_free), (nucleus, _draw_nucleus), (limited, _draw_limited)):
        if places:
            _fill(drawn, places, draw(slab.select(places)))
    return drawn


def _fill(drawn: list[int], places: Sequence[int], token_ids: Sequence[int]) -> None:
    for place, token_id in zip(places, token_ids, strict=True):
        drawn[place] = token_id


def _draw_free(slab: Slab) -> list[int]:
    """Draw where at most ``min_p`` restricts the choice."""
    weights = _weights(slab)
    token_ids: list[int] = _pick(weights, _mass(weights), slab.uniforms()).tolist()
    return token_ids


def _draw_limited(slab: Slab) -> list[int]:
    """Draw where ``top_k`` restricts the choice."""
    return _draw_restricted(slab, None)


def _draw_nucleus(slab: Slab) -> list[int]:
    """Draw where ``top_p``, and no ``top_k``, restricts the choice."""
    return _draw_restricted(slab, _mass(_weights(slab))[:, -1:])


def _weights(slab: Slab) -> Tensor:
    """Return unnormalised probabilities [S, P] float32, 1 for the best token, 0 where cut."""
    weights = slab.logits - slab.peak.float()[:, None]
    missing = -weights.shape[1] % _CHUNK
    if missing:
        weights = pad(weights, (0, missing), value=float("-inf"))
    weights.div_(slab.temperature.float()[:, None]).exp_()
    if any(row.sampling.min_p for row in slab.rows):
        weights.masked_fill_(weights < slab.min_p.float()[:, None], 0.0)
    return weights


def _chunks(weights: Tensor) -> Tensor:
    return weights.view(len(weights), -1, _CHUNK)


def _mass(weights: Tensor) -> Tensor:
    """Return running sums [S, P / C] float64 over chunks."""
    return _chunks(weights).sum(-1).cumsum(-1, dtype=torch.float64)


def _pick(weights: Tensor, mass: Tensor, uniforms: Tensor) -> Tensor:
    """Return tokens [S]: the chunk in which the share falls, then the token within it."""
    chunk, below = _search(mass, uniforms)
    rows = torch.arange(len(weights), device=weights.device)
    inside = _chunks(weights)[rows, chunk[:, 0]].double().cumsum(-1)
    share = (uniforms * mass[:, -1:] - below) / (mass.gather(1, chunk) - below)
    token, _ = _search(inside, share.clamp(0, 1))
    return (chunk * _CHUNK + token)[:, 0]


def _search(sums: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the running sums first exceed a share of the last one, and the sum before it.

    Entries of no weight are never hit: their sum equals that of the entry before.
    """
    total = sums[:, -1:]
    target = torch.minimum(share * total, total.nextafter(torch.zeros_like(total)))
    place = torch.searchsorted(sums, target, right=True)
    below = sums.gather(1, (place - 1).clamp_min(0)) * (place > 0)
    return place, below


def _draw_restricted(slab: Slab, totals: Tensor | None) -> list[int]:
    """Draw among the few best tokens of a row if its choice lies there, else of the whole row."""
    drawn = [0] * len(slab.rows)
    pending = list(range(len(slab.rows)))
    for width in _WIDTHS:
        if not pending or width >= slab.logits.shape[1]:
            break
        part = slab.select(pending)
        total = totals
        if total is not None and len(pending) < len(slab.rows):
            total = total[torch.tensor(pending, device=total.device)]
        tokens, settled = _draw_within(part, total, width)
        _fill(drawn, pending, tokens)
        pending = [place for place, done in zip(pending, settled, strict=True) if not done]
    if pending:
        part = slab.select(pending)
        tokens, _ = _draw_within(part, None, slab.logits.shape[1])
        _fill(drawn, pending, tokens)
    return drawn


def _draw_within(slab: Slab, total: Tensor | None, width: int) -> tuple[list[int], list[bool]]:
    """Draw among the ``width`` best of each row.

    Args:
        total: what all weights that pass ``min_p`` sum to, for rows without ``top_k``.

    Returns:
        The tokens, and whether each row's choice is certain to lie within that width.
    """
    values, ids = leading(slab.logits, width)
    width = values.shape[1]
    weights = ((values.double() - slab.peak[:, None]) / slab.temperature[:, None]).exp()
    sums = weights.cumsum(-1)
    num_kept = (weights >= slab.min_p[:, None]).sum(-1, keepdim=True)
    num_kept = torch.minimum(num_kept, slab.top_k.long()[:, None])
    known = (num_kept < width) | (slab.top_k[:, None] <= width)
    if total is None:
        total = sums.gather(1, num_kept.clamp_max(width) - 1)
    else:
        known = torch.ones_like(known)
    reach = slab.top_p[:, None] * total
    num_nucleus = 1 + (sums[:, :-1] < reach).sum(-1, keepdim=True)
    last = torch.minimum(num_kept, num_nucleus).clamp_max(width) - 1
    settled = known & (values.gather(1, last) > values[:, -1:])
    place, _ = _search(sums.clamp_max(sums.gather(1, last)), slab.uniforms())
    return ids.gather(1, place)[:, 0].tolist(), settled[:, 0].tolist()
