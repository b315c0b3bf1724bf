"""Splits of keys fill waves of a GPU."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_backends.kernels import key_splits
from paged_backends.kernels.key_splits import MAX_SPLITS, choose_splits
from paged_backends.kernels.triton.tuning import tuning


def waves(programs: int, splits: int, slots: int) -> int:
    return ceil(programs * splits / slots)


def time_of(programs: int, longest: int, splits: int, slots: int) -> int:
    """In keys that are read: of all waves, and of what merges the parts."""
    if splits == 1:
        return waves(programs, 1, slots) * (longest + key_splits._START)
    part = ceil(longest / splits / 16) * 16 + key_splits._START
    return waves(programs, splits, slots) * part + key_splits._MERGE


@given(
    programs=st.integers(0, 3000),
    longest=st.integers(0, 200_000),
    least=st.sampled_from([64, 256, 512]),
    slots=st.integers(1, 800),
)
def test_no_other_number_of_about_as_many_waves_takes_less_time(
    programs: int, longest: int, least: int, slots: int
) -> None:
    splits = choose_splits(programs, longest, least, slots, unit=16)
    assert 1 <= splits <= MAX_SPLITS
    assert splits == 1 or (splits - 1) * least < longest
    programs = max(1, programs)
    first = waves(programs, 2, slots)
    others = [
        time_of(programs, longest, other, slots)
        for other in range(1, min(MAX_SPLITS, ceil(longest / least)) + 1)
        if waves(programs, other, slots) <= first + 8
    ]
    assert time_of(programs, longest, splits, slots) <= min(others, default=longest + 64 + 1 << 60)


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
