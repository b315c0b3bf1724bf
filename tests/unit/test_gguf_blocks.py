"""Blocks of GGUF files mean the numbers that the package ``gguf`` reads in them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from integration.gguf_files import random_blocks
from paged_backends.checkpoint.gguf.header import BLOCK_TYPES, OTHER_NAMES, BlockType
from paged_backends.checkpoint.gguf.tensors import QuantizedTensor

QUANTIZED = [kind for kind in BLOCK_TYPES.values() if kind.is_quantized]


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_rows", [1, 3, 600])
def test_any_bytes_are_the_same_numbers(kind: BlockType, num_rows: int) -> None:
    random = np.random.default_rng(num_rows)
    shape = (num_rows, 256)
    blocks = random.integers(0, 256, (num_rows, 256 // kind.length * kind.num_bytes), np.uint8)
    stored = QuantizedTensor(kind, shape, torch.from_numpy(blocks))
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, GGMLQuantizationType[kind.name])
    numbers = stored.dequantize(torch.float32)
    np.testing.assert_array_equal(numbers.numpy(), expected)
    torch.testing.assert_close(
        stored.dequantize(torch.bfloat16),
        torch.from_numpy(expected).bfloat16(),
        rtol=0,
        atol=0,
        equal_nan=True,
    )


def test_numbers_and_sizes_are_those_of_ggml() -> None:
    for number, kind in BLOCK_TYPES.items():
        own = GGMLQuantizationType[kind.name]
        assert own == number
        assert gguf.GGML_QUANT_SIZES[own] == (kind.length, kind.num_bytes)
    for number, name in OTHER_NAMES.items():
        assert GGMLQuantizationType[name] == number


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("num_rows", [1, 600])
def test_codes_and_scales_are_the_same_numbers(kind: BlockType, num_rows: int) -> None:
    blocks = random_blocks(
        GGMLQuantizationType[kind.name], (num_rows, 512), np.random.default_rng(1)
    )
    stored = QuantizedTensor(kind, (num_rows, 512), torch.from_numpy(blocks))
    matrix = stored.matrix()
    assert matrix.shape == (num_rows, 512)
    assert matrix.codes_OGY.shape == matrix.weight_format.codes_shape(matrix.shape)
    assert matrix.scales_OG.shape == matrix.weight_format.scales_shape(matrix.shape)
    expected = stored.dequantize(torch.float32)
    if matrix.weight_format.bits == 8 or matrix.offsets_OG is None:
        assert torch.equal(matrix.dequantized(), expected)
    else:  # offsets are those of other codes: 8 scales are added, which may round
        rounding = 2**-22 * (8 * matrix.scales_OG.abs() + matrix.offsets_OG.abs()).max()
        assert (matrix.dequantized() - expected).abs().max() <= rounding


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_rows_are_looked_up(kind: BlockType) -> None:
    blocks = random_blocks(GGMLQuantizationType[kind.name], (9, 256), np.random.default_rng(2))
    stored = QuantizedTensor(kind, (9, 256), torch.from_numpy(blocks))
    for dtype in (torch.float32, torch.bfloat16):
        for tokens in ([8, 0, 0, 3], []):
            found = stored.rows(torch.tensor(tokens, dtype=torch.int64)).dequantize(dtype)
            assert torch.equal(found, stored.dequantize(dtype)[tokens])
