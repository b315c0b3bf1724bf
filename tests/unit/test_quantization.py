"""Weights quantised in groups, and the file that they are kept in."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_backends.quantization.disk_cache import (
    DamagedFile,
    open_quantized,
    write_quantized,
)
from paged_backends.quantization.matrix import (
    QuantizedMatrix,
    QuantizedWeights,
    Rows,
    shape_of,
    stacked,
)
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from unit.test_quantized_kernels import formats, matrix

pytestmark = pytest.mark.heavy


FORMATS = [WeightFormat(bits, size) for bits in (4, 8) for size in (32, 64, 128)]  # type: ignore[arg-type]


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def equal(left: QuantizedMatrix, right: QuantizedMatrix) -> bool:
    same = torch.equal(left.codes_OGY, right.codes_OGY)
    return same and torch.equal(left.scales_OG, right.scales_OG)


# ---------------------------------------------------------------------- numbers


@settings(deadline=None)
@given(
    weight_format=st.sampled_from(FORMATS),
    rows=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    inputs=st.integers(1, 200),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    transposed=st.booleans(),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 100.0]),
)
def test_a_weight_is_off_by_half_a_step_at_most(
    weight_format: WeightFormat,
    rows: list[int],
    inputs: int,
    dtype: torch.dtype,
    transposed: bool,
    scale: float,
) -> None:
    parts = [(noise(count, inputs, seed=count) * scale).to(dtype) for count in rows]
    if transposed:
        parts = [part.T.contiguous().T for part in parts]
    (matrix,) = quantize([parts], weight_format)
    assert matrix.shape == shape_of(parts) == (sum(rows), inputs)
    assert matrix.codes_OGY.shape == weight_format.codes_shape(matrix.shape)
    off = (matrix.dequantized() - torch.cat(parts).float()).abs()
    step = matrix.scales_OG.abs().repeat_interleave(weight_format.group_size, 1)[:, :inputs]
    # as large as the largest, with the other sign: there is no code for it
    lacks_code = matrix.dequantized().abs() >= (weight_format.middle - 1.01) * step
    assert (off <= torch.where(lacks_code, 1.01, 0.51) * step).all()


def test_written_codes() -> None:
    weight = torch.zeros(2, 32)
    weight[0, :4] = torch.tensor([-8.0, 7.0, 1.0, -1.0])
    (matrix,) = quantize([[weight]], WeightFormat(4, 32))
    assert matrix.scales_OG.tolist() == [[1.0], [0.0]]
    assert matrix.codes_OGY[0, 0, :3].tolist() == [0 | 15 << 4, 9 | 7 << 4, 0x88]
    assert matrix.codes_OGY[1, 0].unique().tolist() == [0x88]
    assert torch.equal(matrix.dequantized(), weight)
    (matrix,) = quantize([[-weight * 16]], WeightFormat(8, 32))
    assert matrix.scales_OG.tolist() == [[-1.0], [0.0]]
    assert matrix.codes_OGY[0, 0, :5].tolist() == [0, 240, 144, 112, 128]


@pytest.mark.parametrize("weight_format", FORMATS[::3], ids=lambda chosen: chosen.name)
def test_rows_are_quantised_by_themselves(weight_format: WeightFormat) -> None:
    """Whatever chunk and thread they come to."""
    weight = noise(3000, 300, dtype=torch.bfloat16)
    (whole,) = quantize([[weight[:1000], weight[1000:]]], weight_format)
    for row in (0, 872, 873, 874, 999, 1000, 2999):
        (alone,) = quantize([[weight[row : row + 1]]], weight_format)
        assert torch.equal(whole.codes_OGY[row], alone.codes_OGY[0]), row
        assert torch.equal(whole.scales_OG[row], alone.scales_OG[0]), row


def test_weights_that_are_not_finite_stay_so() -> None:
    weight = noise(2, 64)
    weight[0, 3] = float("nan")
    (matrix,) = quantize([[weight]], WeightFormat(4, 32))
    assert not matrix.dequantized()[0, :32].isfinite().all()
    assert matrix.dequantized()[1].isfinite().all()


@settings(deadline=None)
@given(
    parts=st.lists(
        st.tuples(formats, st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    inputs=st.integers(1, 300),
)
def test_matrices_of_one_input_become_one_with_the_same_weights(
    parts: list[tuple[WeightFormat, int, bool]], inputs: int
) -> None:
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


# ---------------------------------------------------------------------- the file

MATRICES: list[Rows] = [[noise(5, 70), noise(3, 70)], [noise(40, 32, dtype=torch.bfloat16)]]
SHAPES = [shape_of(rows) for rows in MATRICES]


def written(path: Path, weight_format: WeightFormat = FORMATS[0]) -> QuantizedWeights:
    write_quantized(path, MATRICES, weight_format)
    return open_quantized(path, weight_format, SHAPES)


@pytest.mark.parametrize("weight_format", FORMATS[::3], ids=lambda chosen: chosen.name)
def test_a_file_holds_what_is_made_in_memory(weight_format: WeightFormat, tmp_path: Path) -> None:
    weights = written(tmp_path / "file", weight_format)
    made = quantize(MATRICES, weight_format)
    assert all(map(equal, weights.matrices, made))
    weights.release()  # the pages: they are read again
    assert all(map(equal, weights.matrices, made))


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "file")
    with pytest.raises(DamagedFile):
        open_quantized(tmp_path / "file", FORMATS[0], SHAPES[::-1])


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    with files_no_larger_than(1000), pytest.raises(OSError, match="large"):
        write_quantized(tmp_path / "file", MATRICES, FORMATS[0])
    assert not list(tmp_path.iterdir())
