"""How the keys of a sequence are shared among thread blocks when it decodes."""

from __future__ import annotations

from dataclasses import dataclass

_WAVES = 4
"""Thread blocks that a multiprocessor is given; fewer leave some of them idle at the end."""
_LEAST_KEYS = 64
"""Of a split: reading them must outweigh starting it and combining the results."""
_FIXED_KEYS = 256
"""Of a split whose results must not depend on the batch."""
_MOST = 128
"""Splits of a sequence."""


@dataclass(frozen=True, slots=True)
class KeySplits:
    """A row that sees n keys takes parts of ``max(keys, n / most rounded up)`` of them, a number
    that depends on n, ``keys`` and ``most`` alone."""

    keys: int
    """Of a part, unless there would be more than ``most``."""
    most: int
    """Parts of a row."""
    count: int
    """Parts of the row that sees most keys, in this batch."""

    @classmethod
    def one(cls) -> KeySplits:
        """Return a single part, whatever a row sees."""
        return cls(_FIXED_KEYS, 1, 1)

    @classmethod
    def choose(
        cls, *, rows: int, blocks: int, longest: int, multiprocessors: int, fixed: bool
    ) -> KeySplits:
        """Return splits that keep all multiprocessors busy, or one if there are rows enough.

        Args:
            rows: that are computed one by one.
            blocks: thread blocks of each, for one split.
            longest: keys that a row sees at most, in this batch or in any that is replayed.
            multiprocessors: of the device.
            fixed: choose the same for all batches, so that the bits of a result do not depend on
                the batch.
        """
        if fixed:
            keys, most = _FIXED_KEYS, _MOST
        else:
            wanted = -(-_WAVES * multiprocessors // max(1, rows * blocks))
            keys, most = _LEAST_KEYS, min(_MOST, max(1, wanted))
        return cls(keys, most, max(1, min(most, -(-longest // keys))))
