"""Dequantises ``fp8`` while transformers loads it, in blocks of the configured size.

The library's own operation divides the sides of a matrix by the number of scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer


@contextmanager
def dequantized_by_block() -> Iterator[None]:
    """Have the library load with the operation here."""
    AUTO_QUANTIZER_MAPPING["fp8"] = _Quantizer
    try:
        yield
    finally:
        AUTO_QUANTIZER_MAPPING["fp8"] = FineGrainedFP8HfQuantizer


class _Dequantize(Fp8Dequantize):  # type: ignore[misc]
    """Fills the last blocks of a matrix with zeros, and cuts them off again."""

    def _dequantize_one(
        self, quantized: Tensor, scales: Tensor, output_dtype: torch.dtype | None = None
    ) -> Tensor:
        block = self.hf_quantizer.quantization_config.weight_block_size
        rows, columns = quantized.shape[-2:]
        if block is not None and scales.ndim > 1:
            lower, right = -rows % block[0], -columns % block[1]
            quantized = torch.nn.functional.pad(quantized.float(), (0, right, 0, lower))
        found: Tensor = super()._dequantize_one(quantized, scales, output_dtype=output_dtype)
        return found[..., :rows, :columns].contiguous()


class _Quantizer(FineGrainedFP8HfQuantizer):  # type: ignore[misc]
    def validate_environment(self, *args: Any, **options: Any) -> None:
        if not self.quantization_config.dequantize:  # which needs nothing
            super().validate_environment(*args, **options)

    def get_load_operations(self) -> dict[str, type]:
        return {"dequantize": _Dequantize}
