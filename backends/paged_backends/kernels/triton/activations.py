"""Activations with a gate.

Shapes: T rows, I the width of a gate.
"""

# ruff: noqa: N803, N806 - constants of a kernel are upper-case, and so is the shape of an array
from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def gate_rows(gate_up, out, row_stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """A program computes BLOCK columns of one row, which holds gate and up side by side."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    places = gate_up + row * row_stride + columns
    gate = tl.load(places, inside, 0.0).to(tl.float32)
    up = tl.load(places + width, inside, 0.0).to(tl.float32)
    if ACTIVATION == "silu":
        gate = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu":
        gate = gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(x)) / 2 is sigmoid(2 x)
        gate = gate * tl.sigmoid(1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate))
    else:
        gate = tl.where(gate < 0, 0.0, gate)  # a NaN stays one
    tl.store(out + row * width + columns, (gate * up).to(out.dtype.element_ty), inside)


def gated(gate_up_TI: Tensor, activation: Literal["silu", "gelu", "gelu_tanh", "relu"]) -> Tensor:
    """Return ``activation(gate) * up`` [T, I] of rows [T, 2 I], whose columns are contiguous."""
    count, width = len(gate_up_TI), gate_up_TI.shape[1] // 2
    out_TI = torch.empty((count, width), dtype=gate_up_TI.dtype, device=gate_up_TI.device)
    if count:
        with torch.cuda.device(gate_up_TI.get_device()):
            gate_rows[(count, triton.cdiv(width, _BLOCK))](
                gate_up_TI, out_TI, gate_up_TI.stride(0), width, ACTIVATION=activation, BLOCK=_BLOCK
            )
    return out_TI
