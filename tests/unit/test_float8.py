"""Keys and values in 8 bits: exact where 4 bits suffice, bounded elsewhere, nothing is clipped."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_backends.attention.cache import layout_of
from paged_backends.attention.float8 import pack, unpack
from paged_core.interfaces.layer import KVCacheDtype
from paged_testing.attention_scene import Scene
from unit.attention_calls import layer, make

pytestmark = pytest.mark.heavy


EXACT = layer(head_dim=8, dtype="float32", block_size=4)
FLOAT8 = replace(EXACT, kv_cache_dtype="fp8_e4m3")


@given(
    st.lists(st.floats(-1, 1, width=32, allow_subnormal=False), min_size=1, max_size=9),
    st.integers(-100, 120),
)
def test_the_error_of_a_number_is_a_16th_at_most(numbers: list[float], power: int) -> None:
    row = torch.tensor([numbers], dtype=torch.float64) * 2.0**power
    error = (unpack(pack(row.float())).double() - row.float().double()).abs()
    smallest = row.float().abs().max().double() * 2.0**-13
    normal = row.float().double().abs().clamp(min=max(smallest, 2.0**-126))
    assert (error <= normal / 16).all()


def test_four_bits_are_kept_whatever_the_scale() -> None:
    numbers = torch.tensor([[m * 2.0**e for m in range(8, 16) for e in (-9, -3, 0)]])
    for power in range(-110, 120, 7):
        row = numbers * 2.0**power
        assert torch.equal(unpack(pack(row)), row)
    assert torch.equal(unpack(pack(torch.zeros(2, 3))), torch.zeros(2, 3))


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_what_is_not_finite_becomes_nan_and_spoils_no_other_row(bad: float) -> None:
    rows = unpack(pack(torch.tensor([[1.0, bad, 2.0], [3.0, 4.0, 5.0]])))
    assert rows[0, 1].isnan()
    assert rows[1].tolist() == [3.0, 4.0, 5.0]


def test_attention_over_it_is_within_a_tenth_of_exact_attention() -> None:
    """Random keys and values, which 8 bits do not hold exactly."""
    for seed in range(5):
        chunks = [(200, 1), (50, 7), (0, 30)]
        exact, stored = (Scene(make("torch"), of, chunks, seed) for of in (EXACT, FLOAT8))
        stored.keys, stored.values = exact.keys, exact.values
        for one, other in zip(exact.run([0, 1, 2]), stored.run([0, 1, 2]), strict=True):
            error = (one - other).norm() / one.norm()
            assert 0 < error < 0.1


@pytest.mark.parametrize(
    ("name", "cache", "row_bytes"), [("torch", "fp8_e4m3", 129), ("cpu", "int8", 130)]
)
def test_a_block_takes_half_the_bytes_of_one_in_bfloat16(
    name: str, cache: KVCacheDtype, row_bytes: int
) -> None:
    wide, layout = layer(head_dim=128), layout_of(make(name))
    half = replace(wide, kv_cache_dtype=cache)
    assert layout.block_bytes(half) / layout.block_bytes(wide) == row_bytes / 256
    assert layout.block_bytes(half) == wide.block_size * half.bytes_per_token
