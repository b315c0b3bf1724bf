"""The best entries of each row, in an order that depends on the row alone.

Shapes: R rows, V vocabulary, K best entries of a row, N columns of F entries that a row is folded
into.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
        return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)
