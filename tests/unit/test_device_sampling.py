"""Sampling on a device, by our kernels and by plain PyTorch, against sampling on the host.

Shapes: R rows, V vocabulary.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from paged_backends.sampling import Row, random_sample
from paged_backends.sampling.device_sampling import (
    DeviceParams,
    DeviceTokens,
    device_sample,
    torch_sample,
    triton_sample,
)
from paged_core.sampling_params import SamplingParams
from unit.sampled_rows import Widest
from unit.triton_device import DEVICE

pytest.importorskip("triton")

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("watched_accesses")]

Draw = Callable[[Tensor, DeviceParams], DeviceTokens]

both = pytest.mark.parametrize("draw", [triton_sample, torch_sample])

Choice = tuple[float, float, int, float, float]
"""Temperature, min_p, top_k, top_p, uniform number."""

choices = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.3, 1.0, 2.5, 1e30]),
        st.sampled_from([0.0, 0.0, 0.02, 0.3]),
        st.sampled_from([0, 0, 1, 2, 5, 70, 5000]),
        st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.1]),
        st.sampled_from([0.0, 1 - 2.0**-53]) | st.floats(0, 1, exclude_max=True),
    ),
    min_size=1,
    max_size=4,
)


def params_of(rows: list[Choice]) -> DeviceParams:
    kinds = (torch.float32, torch.float32, torch.int32, torch.float64, torch.float64)
    columns = zip(*rows, strict=True)
    tensors = [
        torch.tensor(column, dtype=kind, device=DEVICE)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    names = [field.name for field in fields(DeviceParams)]
    return DeviceParams(**dict(zip(names, tensors, strict=True)))


def logits_of(count: int, vocab_size: int, seed: int, *, coarse: bool = False) -> Tensor:
    logits = torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
    return (logits.round() if coarse else logits).to(DEVICE)


def on_host(logits_V: Tensor, choice: Choice) -> int:
    temperature, min_p, top_k, top_p, uniform = choice
    if temperature == 0:
        return int(logits_V.argmax())
    asked = SamplingParams(temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
    row = Row(asked, [0], 1, 0, "request")
    return random_sample(logits_V[None], [row], lambda _: uniform)[0]


def allowed(logits_V: Tensor, choice: Choice) -> set[int]:
    """The token drawn on the host, and all that it draws if sums are rounded otherwise."""
    temperature, min_p, top_k, top_p, uniform = choice
    if temperature == 0:
        return {on_host(logits_V, choice)}
    weights = ((logits_V - logits_V.max()) / temperature).exp()
    is_kept = (weights > 0) & (weights >= min_p * (1 - 1e-6))
    is_sorted = 0 < top_k < len(logits_V) or top_p < 1
    by_place = (-logits_V if is_sorted else torch.zeros_like(logits_V)).argsort(stable=True)
    order: list[int] = by_place[is_kept[by_place]].tolist()
    found: set[int] = set()
    for nucleus in (1 - 1e-6, 1, 1 + 1e-6):
        share = min(top_p * nucleus, 1.0) if top_p < 1 else 1.0
        numbers = (max(uniform - 3e-6, 0.0), min(uniform + 3e-6, 1 - 2.0**-53))
        first, last = (
            order.index(on_host(logits_V, (temperature, min_p, top_k, share, number)))
            for number in numbers
        )
        found.update(order[first : last + 1])
    return found


@both
@given(
    rows=choices,
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([1, 2, 37, 300, 4097]),
    coarse=st.booleans(),
)
@example(
    rows=[(0.0, 0.0, 0, 1.0, 0.0), (0.3, 0.0, 0, 1.0, 1 - 2.0**-53), (0.0, 0.0, 0, 1.0, 0.0)],
    seed=246,
    vocab_size=37,
    coarse=False,
)
@settings(max_examples=12, deadline=None)
def test_draws_as_the_host_does(
    draw: Draw, rows: list[Choice], seed: int, vocab_size: int, coarse: bool
) -> None:
    logits = logits_of(len(rows), vocab_size, seed, coarse=coarse)
    draws = draw(logits, params_of(rows))
    assert torch.equal(draws.peaks_R, logits.amax(-1))
    for row, token in enumerate(draws.tokens_R.tolist()):
        assert token in allowed(logits[row].cpu(), rows[row])


@both
def test_equal_tokens_are_drawn_in_the_order_of_their_ids(draw: Draw) -> None:
    """Eight equal tokens: a number of ``(n + 1/2) / 8`` draws the nth."""
    logits = torch.full((8, 600), -50.0, device=DEVICE)
    ids = [3, 64, 65, 300, 301, 302, 511, 599]
    logits[:, ids] = 1.5
    for filters in (((0, 1.0), (8, 1.0)), ((0, 0.999), (100, 0.9999))):
        rows = [(1.0, 0.01, *filters[place % 2], (place + 0.5) / 8) for place in range(8)]
        assert draw(logits, params_of(rows)).tokens_R.tolist() == ids
    rows = [(1.0, 0.0, 4, 0.5, number) for number in (0.2, 0.49, 0.51, 0.9)]
    assert draw(logits[:4], params_of(rows)).tokens_R.tolist() == [3, 3, 64, 64]


@both
def test_what_is_ruled_out_is_never_drawn(draw: Draw) -> None:
    logits = torch.full((16, 80), float("-inf"), device=DEVICE)
    logits[:, [5, 79]] = torch.tensor([3.0, 0.0], device=DEVICE)
    rows = [
        (1e30, 0.0, (0, 7)[place % 2], (1.0, 0.99)[place // 2 % 2], place / 16)
        for place in range(16)
    ]
    assert set(draw(logits, params_of(rows)).tokens_R.tolist()) == {5, 79}


@both
def test_rows_that_are_not_finite_are_told_apart(draw: Draw) -> None:
    logits = logits_of(8, 700, 1)
    logits[0, 650] = float("nan")
    logits[1, 3] = float("inf")
    logits[2] = float("-inf")
    logits[3, 1:] = float("-inf")
    rows: list[Choice] = [(1.0, 0.1, 5, 0.9, 0.5)] * 4 + [(0.0, 0.0, 0, 1.0, 0.5)] * 4
    logits[4:] = logits[:4].clone()
    draws = draw(logits, params_of(rows))
    assert draws.peaks_R.isnan().tolist() == [True, False, False, False] * 2
    assert draws.peaks_R.isfinite().tolist() == [False, False, False, True] * 2
    assert draws.tokens_R[[3, 7]].tolist() == [0, 0]
    assert bool(((draws.tokens_R >= 0) & (draws.tokens_R < 700)).all())


@pytest.mark.parametrize("value", [0.0, -7.25, 1e30, -3e38, 1e-40])
@both
def test_magnitudes_do_not_matter(draw: Draw, value: float) -> None:
    """All tokens are equal but for one that is ruled out, however large or small they are."""
    logits = torch.full((4, 64), value, device=DEVICE)
    logits[:, 1] = float("-inf")
    rows = [(0.7, 0.0, 0, 0.999, 0.0), (0.7, 0.0, 3, 1.0, 0.99), (1e30, 0.0, 2, 0.9, 0.6)]
    rows.append((1.0, 0.0, 0, 1.0, 0.9999))
    assert draw(logits, params_of(rows)).tokens_R.tolist() == [0, 3, 2, 63]


@given(rows=choices, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=2, deadline=None)
def test_a_draw_depends_on_its_row_alone(rows: list[Choice], seed: int) -> None:
    logits = logits_of(len(rows), 500, seed)
    params = params_of(rows)
    together = triton_sample(logits, params).tokens_R
    apart = logits_of(2 * len(rows), 501, 0)[::2, 1:]
    apart.copy_(logits)
    assert torch.equal(triton_sample(apart, params).tokens_R, together)
    last = DeviceParams(
        **{field.name: getattr(params, field.name)[-1:] for field in fields(DeviceParams)}
    )
    assert torch.equal(triton_sample(logits[-1:], last).tokens_R, together[-1:])


@pytest.mark.parametrize(
    ("draw", "dtype"), [(triton_sample, torch.bfloat16), (torch_sample, torch.float16)]
)
def test_logits_of_16_bits_are_drawn_from_as_they_are(draw: Draw, dtype: torch.dtype) -> None:
    """They are nowhere copied in float32, and their ties are those of the numbers that they are."""
    logits = logits_of(12, 9000, 4).to(dtype)
    logits[5, 77], logits[9] = float("nan"), float("-inf")
    filters = [(0, 1.0), (0, 0.9), (30, 0.95)]
    rows = [(0.4 * (place % 4), 0.0, *filters[place % 3], place / 12) for place in range(12)]
    params = params_of(rows)
    with Widest() as widest:
        found = draw(logits, params)
    if draw is triton_sample:
        assert 0 < widest.size < logits.numel()
    expected = draw(logits.float(), params)
    assert torch.equal(found.tokens_R, expected.tokens_R)
    assert found.peaks_R.dtype is torch.float32
    assert torch.equal(found.peaks_R.nan_to_num(), expected.peaks_R.nan_to_num())


def test_a_device_takes_what_serves_it() -> None:
    logits, params = logits_of(2, 300, 5), params_of([(1.0, 0.0, 9, 0.8, 0.3)] * 2)
    expected = (triton_sample if DEVICE == "cuda" else torch_sample)(logits, params)
    drawn = device_sample(logits, params)
    assert torch.equal(drawn.tokens_R, expected.tokens_R)
    assert torch.equal(drawn.peaks_R, expected.peaks_R)
