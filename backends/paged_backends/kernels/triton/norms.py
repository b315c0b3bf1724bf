"""RMSNorm and LayerNorm of rows, alone or added to a residual.

Shapes: T rows, E their width.
"""

# ruff: noqa: N803, N806 - constants of a kernel are upper-case, and so is the shape of an array
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def normalize_rows(
    rows, weight, bias, residual, out,
    row_stride, residual_stride, width, eps, offset,
    CENTERED: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A program computes one row; it adds to the residual in place if there is one."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    values = tl.load(rows + row * row_stride + columns, inside, 0.0).to(tl.float32)
    if CENTERED:
        values = tl.where(inside, values - tl.sum(values, 0) / width, 0.0)
    values = values * tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    if HAS_WEIGHT:
        values = values * (tl.load(weight + columns, inside, 0.0).to(tl.float32) + offset)
    if HAS_BIAS:
        values += tl.load(bias + columns, inside, 0.0).to(tl.float32)
    if HAS_RESIDUAL:
        places = residual + row * residual_stride + columns
        values += tl.load(places, inside, 0.0).to(tl.float32)
        tl.store(places, values.to(residual.dtype.element_ty), inside)
    else:
        tl.store(out + row * width + columns, values.to(out.dtype.element_ty), inside)


def rms_norm(
    rows_TE: Tensor,
    weight_E: Tensor,
    eps: float,
    offset: float = 0.0,
    residual_TE: Tensor | None = None,
) -> Tensor:
    """Return RMSNorm [T, E] of rows whose last dimension is contiguous.

    Args:
        offset: added to the weight.
        residual_TE: if given, the result is added to it in place, and it is returned.
    """
    return _normalize(rows_TE, weight_E, None, eps, offset, residual_TE, centered=False)


def layer_norm(
    rows_TE: Tensor,
    weight_E: Tensor | None,
    bias_E: Tensor | None,
    eps: float,
    residual_TE: Tensor | None = None,
) -> Tensor:
    """Return LayerNorm [T, E]; see :func:`rms_norm`."""
    return _normalize(rows_TE, weight_E, bias_E, eps, 0.0, residual_TE, centered=True)


def _normalize(
    rows_TE: Tensor,
    weight_E: Tensor | None,
    bias_E: Tensor | None,
    eps: float,
    offset: float,
    residual_TE: Tensor | None,
    *,
    centered: bool,
) -> Tensor:
    count, width = rows_TE.shape
    out_TE = residual_TE
    if out_TE is None:
        out_TE = torch.empty((count, width), dtype=rows_TE.dtype, device=rows_TE.device)
    if not count:
        return out_TE
    padded = triton.next_power_of_2(width)
    with torch.cuda.device(rows_TE.get_device()):
        normalize_rows[(count,)](
            rows_TE,
            rows_TE if weight_E is None else weight_E,
            rows_TE if bias_E is None else bias_E,
            out_TE,
            out_TE,
            rows_TE.stride(0),
            out_TE.stride(0),
            width,
            eps,
            offset,
            CENTERED=centered,
            HAS_WEIGHT=weight_E is not None,
            HAS_BIAS=bias_E is not None,
            HAS_RESIDUAL=residual_TE is not None,
            WIDTH=padded,
            num_warps=min(max(padded // 512, 1), 16),
        )
    return out_TE
