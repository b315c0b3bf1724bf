"""Splits of keys fill waves of a GPU."""

from __future__ import annotations

import pytest

from paged_backends.kernels.key_splits import choose_splits
from paged_backends.kernels.triton.tuning import tuning


@pytest.mark.parametrize(
    ("sequences", "longest", "expected"),
    [(64, 4096, 1), (8, 16_384, 8), (32, 4096, 2), (1, 131_072, 66), (256, 1024, 1), (3, 100, 1)],
)
def test_splits_of_known_batches(sequences: int, longest: int, expected: int) -> None:
    """8 key heads, on 132 multiprocessors that run four at once: 0.97 waves, or one in full."""
    assert choose_splits(sequences * 8, longest, 64, 4 * 132, unit=16) == expected


@pytest.mark.parametrize(
    ("dim", "capability", "expected"),
    [(128, (9, 0), 2), (64, (9, 0), 4), (128, (8, 6), 1), (64, (8, 0), 3)],
)
def test_programs_that_a_multiprocessor_runs_at_once(
    dim: int, capability: tuple[int, int], expected: int
) -> None:
    assert tuning(dim, 2, capability).decode.resident(dim, 2, capability) == expected
