"""Operations of a layer beside attention and matrix products: gated activations, norms, and what is
done to query and key heads before attention (RMSNorm, then the rotary embedding).

Shapes: T rows or tokens, I the width of a gate, E the width of a row, H query heads, K key heads,
D head_dim, F rotated pairs of a head: half of D.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
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


NUMBERS = 2048
"""Numbers of heads that a program holds."""


@triton.jit
def prepared(
    places, norm, cos, sin, token, pair, inside, half, eps, offset,
    HAS_NORM: tl.constexpr, HAS_ROTARY: tl.constexpr,
):  # fmt: skip
    """Return both halves, float32, of heads that are normalised and rotated.

    Args:
        places: of the numbers of the first halves.
        token: of each head, int64.
        pair: numbers of a half.
    """
    low = tl.load(places, inside, 0.0).to(tl.float32)
    high = tl.load(places + half, inside, 0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
        scale = tl.rsqrt(squares / (2 * half) + eps)[:, None]
        low_weight = tl.load(norm + pair, pair < half, 0.0).to(tl.float32) + offset
        high_weight = tl.load(norm + half + pair, pair < half, 0.0).to(tl.float32) + offset
        low, high = low * scale * low_weight[None, :], high * scale * high_weight[None, :]
    if HAS_ROTARY:
        angles = token[:, None] * half + pair[None, :]
        cosine, sine = tl.load(cos + angles, inside, 0.0), tl.load(sin + angles, inside, 0.0)
        low, high = low * cosine - high * sine, high * cosine + low * sine
    return low, high


@triton.jit
def prepare(
    heads, norm, cos, sin, token_stride, head_stride, first_row, num_rows, count, half, eps, offset,
    HAS_NORM: tl.constexpr, HAS_ROTARY: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Prepare ROWS heads in place, of all tokens' heads one after another."""
    row = first_row + tl.arange(0, ROWS)
    token, head = (row // count).to(tl.int64), row % count
    pair = tl.arange(0, HALF)
    inside = (row < num_rows)[:, None] & (pair < half)[None, :]
    places = heads + (token * token_stride + head * head_stride)[:, None] + pair[None, :]
    low, high = prepared(
        places, norm, cos, sin, token, pair, inside, half, eps, offset, HAS_NORM, HAS_ROTARY
    )
    tl.store(places, low.to(heads.dtype.element_ty), inside)
    tl.store(places + half, high.to(heads.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["num_tokens", "query_programs"])
def prepare_query_and_key(
    query, key, query_norm, key_norm, cos, sin,
    query_token, query_head, key_token, key_head,
    num_tokens, query_programs, num_heads, num_kv_heads, half, eps, offset,
    HAS_QUERY_NORM: tl.constexpr, HAS_KEY_NORM: tl.constexpr, HAS_ROTARY: tl.constexpr,
    ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The first ``query_programs`` programs prepare query heads, the others key heads."""
    program = tl.program_id(0)
    if program < query_programs:
        prepare(
            query, query_norm, cos, sin, query_token, query_head, program * ROWS,
            num_tokens * num_heads, num_heads, half, eps, offset,
            HAS_QUERY_NORM, HAS_ROTARY, ROWS, HALF,
        )  # fmt: skip
    else:
        prepare(
            key, key_norm, cos, sin, key_token, key_head, (program - query_programs) * ROWS,
            num_tokens * num_kv_heads, num_kv_heads, half, eps, offset,
            HAS_KEY_NORM, HAS_ROTARY, ROWS, HALF,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def compute_angles(
    positions, frequencies, cos, sin, num_tokens, half, TOKENS: tl.constexpr, HALF: tl.constexpr
):
    """A program computes cosines and sines of TOKENS tokens."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    pair = tl.arange(0, HALF)
    inside = (token < num_tokens)[:, None] & (pair < half)[None, :]
    position = tl.load(positions + token, token < num_tokens, 0).to(tl.float32)
    angle = position[:, None] * tl.load(frequencies + pair, pair < half, 0.0)[None, :]
    places = token.to(tl.int64)[:, None] * half + pair[None, :]
    tl.store(cos + places, tl.cos(angle), inside)
    tl.store(sin + places, tl.sin(angle), inside)


def rotary_angles(frequencies_F: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, [T, F] float32, of each pair's angle at each position."""
    count, half = len(positions_T), len(frequencies_F)
    cos_TF = torch.empty((count, half), dtype=torch.float32, device=positions_T.device)
    sin_TF = torch.empty_like(cos_TF)
    if not count:
        return cos_TF, sin_TF
    padded = triton.next_power_of_2(half)
    tokens = max(1, 512 // padded)
    with torch.cuda.device(positions_T.get_device()):
        compute_angles[(triton.cdiv(count, tokens),)](
            positions_T, frequencies_F, cos_TF, sin_TF, count, half, TOKENS=tokens, HALF=padded
        )
    return cos_TF, sin_TF


def prepare_heads(
    query_THD: Tensor,
    key_TKD: Tensor,
    angles: tuple[Tensor, Tensor] | None,
    *,
    query_norm_D: Tensor | None = None,
    key_norm_D: Tensor | None = None,
    eps: float = 0.0,
    offset: float = 0.0,
) -> None:
    """Normalise and rotate heads in place; the last dimension of both tensors is contiguous.

    Args:
        angles: cosines and sines [T, F] float32, contiguous; ``None``: heads are not rotated.
        query_norm_D: weight of the RMSNorm of query heads, which comes first; ``None``: no norm.
        key_norm_D: likewise of key heads.
        offset: added to both weights.
    """
    num_tokens, num_heads, head_dim = query_THD.shape
    num_kv_heads, half = key_TKD.shape[1], head_dim // 2
    if not num_tokens:
        return
    padded = triton.next_power_of_2(half)
    rows = max(1, NUMBERS // (2 * padded))
    query_programs = triton.cdiv(num_tokens * num_heads, rows)
    key_programs = triton.cdiv(num_tokens * num_kv_heads, rows)
    cos_TF, sin_TF = (query_THD, query_THD) if angles is None else angles
    with torch.cuda.device(query_THD.get_device()):
        prepare_query_and_key[(query_programs + key_programs,)](
            query_THD,
            key_TKD,
            query_THD if query_norm_D is None else query_norm_D,
            key_TKD if key_norm_D is None else key_norm_D,
            cos_TF,
            sin_TF,
            query_THD.stride(0),
            query_THD.stride(1),
            key_TKD.stride(0),
            key_TKD.stride(1),
            num_tokens,
            query_programs,
            num_heads,
            num_kv_heads,
            half,
            eps,
            offset,
            HAS_QUERY_NORM=query_norm_D is not None,
            HAS_KEY_NORM=key_norm_D is not None,
            HAS_ROTARY=angles is not None,
            ROWS=rows,
            HALF=padded,
        )
