"""Tensors of torch as values of ONNX Runtime: the same memory, on the CPU."""

from __future__ import annotations

import onnxruntime
import torch
from torch import Tensor

from paged_backends.runners.onnx.graph import ELEMENT_TYPES


def as_ort_value(tensor: Tensor) -> onnxruntime.OrtValue:
    """Return the memory of a contiguous tensor, which must outlive every use of the value."""
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            tensor.view(torch.uint16).numpy(), ELEMENT_TYPES[tensor.dtype]
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
