"""Draws by our kernels against a sort of exact weights, and the passes over a row that they take.

Shapes: R rows, V vocabulary.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from itertools import accumulate
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_backends.sampling.device_sampling import triton_sample
from unit.test_device_sampling import Choice, params_of
from unit.triton_device import DEVICE

triton = pytest.importorskip("triton")

from paged_backends.kernels.triton import sampling  # noqa: E402
from paged_backends.kernels.triton.sampling_selection import bounded, weights_of  # noqa: E402

pytestmark = pytest.mark.heavy


tl = triton.language

LAST = 1 - 2.0**-53
"""The uniform number that draws the last token of what is kept."""


@triton.jit
def weigh(logits, weights, size, peak, temperature, min_p, scale, SIZE: tl.constexpr):
    ids = tl.arange(0, SIZE)
    values = tl.load(logits + ids, ids < size, float("-inf")).to(tl.float32)
    made = weights_of(values, peak, bounded(temperature), min_p, scale)
    tl.store(weights + ids, made, ids < size)


def weights(logits_V: Tensor, choice: Choice) -> list[int]:
    """The kernels' own weights, which are integers."""
    temperature, min_p, *_ = choice
    size = len(logits_V)
    made = torch.empty(size, dtype=torch.int64, device=DEVICE)
    scale = 2.0 ** min(sampling._WEIGHT_BITS, sampling._SUM_BITS - size.bit_length())
    peak = float(logits_V.max())
    width = triton.next_power_of_2(size)
    weigh[(1,)](logits_V, made, size, peak, temperature, min_p, scale, SIZE=width)
    return made.tolist()


def drawn_by_sorting(logits_V: Tensor, choice: Choice) -> int:
    """The definition: a token is kept if it is one of the ``top_k`` best, and if those before it
    have less than ``top_p`` of the weight of these; of what is kept, the first token is drawn up to
    which there is more than ``uniform`` of the weight."""
    _, _, top_k, top_p, uniform = choice
    by_id, size = weights(logits_V, choice), len(logits_V)
    order = list(range(size))
    if 0 < top_k < size or top_p < 1:
        order.sort(key=lambda token: (-float(logits_V[token]), token))
    if 0 < top_k < size:
        order = order[:top_k]
    sums = list(accumulate(by_id[token] for token in order))
    if top_p < 1:
        reach = ceil(float(np.float64(top_p) * np.float64(sums[-1])))
        sums = sums[: 1 + next(place for place, sum_ in enumerate(sums) if sum_ >= max(reach, 1))]
    target = min(int(np.float64(uniform) * np.float64(sums[-1])), sums[-1] - 1)
    return order[next(place for place, sum_ in enumerate(sums) if sum_ > target)]


def rows_of(shape: str, count: int, size: int, seed: int) -> Tensor:
    """Logits in one of many distributions [R, V]."""
    normal = torch.randn(count, size, generator=torch.Generator().manual_seed(seed))
    made = {
        "normal": normal * 3,
        "ties": (normal * 2).round(),
        "equal": torch.full_like(normal, -7.25),
        "nearly equal": 4 + normal * 1e-4,
        "peaked": normal * 40,
        "near zero": normal * 1e-30,
        "ruled out": normal.masked_fill(normal < 0.5, float("-inf")),
        "two levels": torch.where(normal > 1, 2.0, -1.0),
        "five ahead": normal * 0.1 + 5 * (torch.arange(size) % 60 == 7),
        "huge": normal * 1e37,
    }[shape]
    made[:, 0] = made[:, 0].clamp_min(-1e38)  # a row has a finite number
    return made


SHAPES = (
    *("normal", "ties", "equal", "nearly equal", "peaked", "near zero", "ruled out"),
    *("two levels", "five ahead", "huge"),
)
filters = st.tuples(
    st.sampled_from([0.3, 1.0, 2.5, 1e30]),
    st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    st.sampled_from([0, 0, 1, 2, 5, 70, 299, 300, 5000]),
    st.sampled_from([1.0, 0.9999, 0.95, 0.9, 0.5, 0.1, 1e-6]),
)
FLAT = (1.0, 0.0, 0, 0.97)
numbers = st.sampled_from([0.0, LAST]) | st.floats(0, 1, exclude_max=True)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@given(
    rows=st.lists(st.tuples(filters, numbers), min_size=1, max_size=3),
    shape=st.sampled_from(SHAPES),
    size=st.sampled_from([1, 2, 37, 300, 1500]),
    seed=st.integers(0, 2**32 - 1),
    dtype=dtypes,
)
@example([(FLAT, LAST), ((2.5, 0.0, 8900, 0.99), LAST)], "nearly equal", 9000, 0, torch.float32)
@example([((1.0, 0.0, 8999, 1.0), LAST), (FLAT, 0.7)], "equal", 9000, 0, torch.bfloat16)
@example([((1e30, 0.0, 8500, 0.9), LAST)], "ruled out", 9000, 0, torch.float32)
@example([((1.0, 0.0, 5, 1.0), LAST)], "five ahead", 300, 0, torch.float32)
@settings(max_examples=15, deadline=None)
def test_a_draw_is_that_of_a_sort(
    rows: list[tuple[Any, float]], shape: str, size: int, seed: int, dtype: torch.dtype
) -> None:
    """The same tokens are kept: of equal logits the lower ids are kept first."""
    choices = [(*asked, number) for asked, number in rows]
    if shape == "huge" and dtype is torch.float16:
        dtype = torch.bfloat16
    logits = rows_of(shape, len(choices), size, seed).to(dtype).to(DEVICE)
    drawn = triton_sample(logits, params_of(choices)).tokens_R.tolist()
    assert drawn == [drawn_by_sorting(logits[row], choice) for row, choice in enumerate(choices)]
