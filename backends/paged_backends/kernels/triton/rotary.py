"""What is done to query and key heads before attention: RMSNorm, then the rotary embedding.

Shapes: T tokens, H query heads, K key heads, D head_dim, F rotated pairs of a head: half of D.
"""

# ruff: noqa: N803, N806 - constants of a kernel are upper-case, and so is the shape of an array
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 2048
"""Numbers of heads that a program holds."""


@triton.jit
def _prepare(
    heads, norm, cos, sin, token_stride, head_stride, first_row, num_rows, count, half, eps, offset,
    HAS_NORM: tl.constexpr, HAS_ROTARY: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Prepare ROWS heads in place, of all tokens' heads one after another."""
    row = first_row + tl.arange(0, ROWS)
    token, head = (row // count).to(tl.int64), row % count
    pair = tl.arange(0, HALF)
    inside = (row < num_rows)[:, None] & (pair < half)[None, :]
    places = heads + (token * token_stride + head * head_stride)[:, None] + pair[None, :]
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
        _prepare(
            query, query_norm, cos, sin, query_token, query_head, program * ROWS,
            num_tokens * num_heads, num_heads, half, eps, offset,
            HAS_QUERY_NORM, HAS_ROTARY, ROWS, HALF,
        )  # fmt: skip
    else:
        _prepare(
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
    rows = max(1, _NUMBERS // (2 * padded))
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
