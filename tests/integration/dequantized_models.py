"""Models of transformers with the weights that the codes of another model stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat


def dequantized_model(folder: Path, weight_format: WeightFormat) -> Any:
    """Load a model in float32, with all linear layers and the head quantised and dequantised."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.config.tie_word_embeddings = False  # the embedding itself is not quantised
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("project_in"):
            module.weight = _dequantized(module.weight, weight_format)
        elif isinstance(module, Conv1D):
            weight = _dequantized(module.weight.T, weight_format)
            module.weight = nn.Parameter(weight.T.contiguous())
    return model


def _dequantized(weight: Tensor, weight_format: WeightFormat) -> nn.Parameter:
    (matrix,) = quantize([[weight.detach()]], weight_format)
    return nn.Parameter(matrix.dequantized().contiguous())


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference, divided by that of what is expected."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())
