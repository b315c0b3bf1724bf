"""Keeps a batch from being read or written outside of a cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class BlockBounds:
    """The extreme block ids and slots of one step's batch, found once, for caches of any size.

    Args:
        tables: block ids [S, W].
        lengths: tokens of each sequence [S].
        slots: where tokens are written [T]; ``None``: not known on the host.
    """

    def __init__(
        self,
        tables: NDArray[np.int32],
        lengths: NDArray[np.int32],
        slots: NDArray[np.int64] | None,
    ) -> None:
        self._width = tables.shape[1]
        self._longest = int(lengths.max(initial=0))
        self._blocks = int(tables.min(initial=0)), int(tables.max(initial=0))
        self._slots = (0, 0)
        if slots is not None:
            self._slots = int(slots.min(initial=0)), int(slots.max(initial=0))

    def check(self, num_blocks: int, block_size: int) -> None:
        """Check that a cache of ``num_blocks`` blocks has all blocks and slots.

        Raises:
            ValueError: it does not, or a sequence is longer than the block tables are wide.
        """
        num_slots = num_blocks * block_size
        for what, (lowest, highest), count in (
            ("block", self._blocks, num_blocks),
            ("slot", self._slots, num_slots),
        ):
            if lowest < 0 or highest >= count:
                wrong = lowest if lowest < 0 else highest
                raise ValueError(f"the batch names {what} {wrong}, and the cache has {count}")
        if self._longest > self._width * block_size:
            raise ValueError(
                f"a sequence has {self._longest} tokens, and its block table has {self._width} "
                f"blocks of {block_size}"
            )
