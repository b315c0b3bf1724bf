"""Blocks of GGUF files mean the numbers that the package ``gguf`` reads in them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from paged_backends.checkpoint.gguf.block_types import BLOCK_TYPES, OTHER_NAMES, BlockType
from paged_backends.checkpoint.gguf.quantized_tensor import QuantizedTensor

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
