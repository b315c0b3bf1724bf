"""One more row, where the number of rows would change how ONNX Runtime multiplies.

A product with quantised weights is computed in tiles of 128 rows. One row alone, or left over, goes
through another kernel, which adds in another order; a spare row keeps it in a tile.

Shapes: T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_TILE = 128


def is_left_over(num_rows: int) -> bool:
    """Whether the last of so many rows is in no tile."""
    return num_rows % _TILE == 1


def with_spare_row(rows: Tensor) -> Tensor:
    """Return the rows, and the last one again."""
    return torch.cat([rows, rows[-1:]])


def attend_without(attend: Attend, num_tokens: int) -> Attend:
    """Return an ``attend`` for one token more, which ``attend`` does not see."""

    def attend_to(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return with_spare_row(
            attend(layer, query[:num_tokens], key[:num_tokens], value[:num_tokens])
        )

    return attend_to
