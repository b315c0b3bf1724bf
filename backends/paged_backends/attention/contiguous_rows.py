"""Queries, keys and values as kernels that are given strides of tokens and heads take them."""

from __future__ import annotations

import torch
from torch import Tensor


def contiguous_rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return it in ``dtype``, the last dimension contiguous; itself if it is so already."""
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
