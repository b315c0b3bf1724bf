"""Quantised matrices of one input become one matrix with the same weights."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_backends.quantization.matrix import QuantizedMatrix, stacked
from paged_backends.quantization.weight_format import WeightFormat

FORMATS = [WeightFormat(bits, size) for bits in (4, 8) for size in (16, 32, 64, 128)]  # type: ignore[arg-type]


def random_matrix(
    weight_format: WeightFormat, outputs: int, inputs: int, *, offsets: bool
) -> QuantizedMatrix:
    """Any codes, with scales of few bits: sums with them are exact in float32."""
    shape = outputs, inputs
    generator = torch.Generator().manual_seed(outputs * 1000 + inputs)
    codes = torch.randint(0, 256, weight_format.codes_shape(shape), generator=generator)
    scales = torch.randint(-99, 99, weight_format.scales_shape(shape), generator=generator) / 256
    return QuantizedMatrix(
        weight_format, shape, codes.to(torch.uint8), scales, scales * 3 if offsets else None
    )


@settings(deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(FORMATS), st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    inputs=st.integers(1, 300),
)
def test_the_weights_are_the_same(parts: list[tuple[WeightFormat, int, bool]], inputs: int) -> None:
    matrices = [
        random_matrix(chosen, outputs, inputs, offsets=offsets)
        for chosen, outputs, offsets in parts
    ]
    whole = stacked(matrices)
    assert whole.shape == (sum(outputs for _, outputs, _ in parts), inputs)
    assert whole.weight_format.bits == max(chosen.bits for chosen, _, _ in parts)
    assert whole.weight_format.group_size == min(chosen.group_size for chosen, _, _ in parts)
    assert (whole.offsets_OG is not None) == any(offsets for _, _, offsets in parts)
    assert whole.codes_OGY.shape == whole.weight_format.codes_shape(whole.shape)
    assert whole.scales_OG.shape == whole.weight_format.scales_shape(whole.shape)
    expected = torch.cat([matrix.dequantized() for matrix in matrices])
    assert torch.equal(whole.dequantized(), expected)


def test_one_matrix_is_itself() -> None:
    matrix = random_matrix(FORMATS[0], 2, 40, offsets=True)
    assert stacked([matrix]) is matrix
