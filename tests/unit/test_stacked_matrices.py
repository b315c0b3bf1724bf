"""Quantised matrices of one input become one matrix with the same weights."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_backends.quantization.matrix import stacked
from paged_backends.quantization.weight_format import WeightFormat
from unit.test_quantized_kernels import formats, matrix


@settings(deadline=None)
@given(
    parts=st.lists(
        st.tuples(formats, st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    inputs=st.integers(1, 300),
)
def test_the_weights_are_the_same(parts: list[tuple[WeightFormat, int, bool]], inputs: int) -> None:
    matrices = [
        matrix(chosen, outputs, inputs, offsets=offsets, seed=outputs * 1000 + inputs)
        for chosen, outputs, offsets in parts
    ]
    whole = stacked(matrices)
    assert whole.shape == (sum(outputs for _, outputs, _ in parts), inputs)
    assert whole.weight_format.bits == max(chosen.bits for chosen, _, _ in parts)
    assert whole.weight_format.group_size == min(chosen.group_size for chosen, _, _ in parts)
    assert (whole.offsets_OG is not None) == any(offsets for _, _, offsets in parts)
    assert whole.codes_OGY.shape == whole.weight_format.codes_shape(whole.shape)
    assert whole.scales_OG.shape == whole.weight_format.scales_shape(whole.shape)
    expected = torch.cat([one.dequantized() for one in matrices])
    assert torch.equal(whole.dequantized(), expected)


def test_one_matrix_is_itself() -> None:
    one = matrix(WeightFormat(4, 16), 2, 40, offsets=True)
    assert stacked([one]) is one
