"""Into how many splits the keys of sequences that decode are cut."""

from __future__ import annotations

MAX_SPLITS = 128
"""A power of two."""
_PROGRAMS_PER_PROCESSOR = 8
"""Two run at once on a streaming multiprocessor; four rounds of them leave little idle at the
end."""


def num_splits(programs: int, most_tiles: int, least_tiles: int, num_processors: int) -> int:
    """Return how many splits keep a GPU busy, 1 .. :data:`MAX_SPLITS`.

    Args:
        programs: sequences times key/value heads, each of which is computed by as many programs
            as there are splits.
        most_tiles: tiles of keys that the longest sequence may have.
        least_tiles: of the shortest split.
        num_processors: streaming multiprocessors of the GPU.
    """
    wanted = -(-num_processors * _PROGRAMS_PER_PROCESSOR // max(1, programs))
    return max(1, min(wanted, most_tiles // least_tiles, MAX_SPLITS))
