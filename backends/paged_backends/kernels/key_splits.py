"""Into how many parts the keys of a sequence that decodes are split, on a GPU."""

from __future__ import annotations

MAX_SPLITS = 128
"""A power of two."""
_GAIN = 0.97
"""More parts take less than this share of the time of fewer; otherwise shorter sequences would be
split and merged for little."""
_START = 64
"""Keys that could be read in the time that it takes to start a part."""
_MERGE = 128
"""Keys that could be read in the time that it takes to launch what merges the parts."""


def choose_splits(programs: int, longest: int, least: int, slots: int, *, unit: int) -> int:
    """Return the least number of parts that takes nearly the least time, 1 .. :data:`MAX_SPLITS`.

    Programs run in waves of ``slots``, and a wave takes as long as its longest part. So parts that
    just fill a number of waves are compared: one part more would begin another wave, in which most
    of the GPU is idle.

    Args:
        programs: of a batch whose sequences are not split.
        longest: keys of the longest sequence.
        least: keys of a part at least, the last one excepted.
        slots: programs that the GPU runs at once.
        unit: a part has a multiple of so many keys.
    """
    programs, most = max(1, programs), min(MAX_SPLITS, -(-longest // least))
    best, shortest = 1, -(-programs // slots) * (longest + _START)
    first = -(-2 * programs // slots)
    last = -(-most * programs // slots)
    for waves in range(first, min(last, first + 8) + 1):
        splits = min(most, slots * waves // programs)
        part = -(-longest // (splits * unit)) * unit
        time = waves * (part + _START) + _MERGE
        if splits > 1 and time < _GAIN * shortest:
            best, shortest = splits, time
    return best
