"""Sampling parameters and requests: values that are refused, and how others are kept."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from paged_core.errors import RequestError
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams

OUT_OF_RANGE: list[tuple[str, Any, str]] = [
    ("n", 0, "n must be at least 1, not 0"),
    ("n", 10**6, "n must be at most 16384, not 1000000"),
    ("temperature", -0.1, "temperature must not be negative, not -0.1"),
    ("temperature", float("nan"), "temperature must be a finite number, not nan"),
    ("top_k", -2, "top_k must be at least 1, or 0 to consider all, not -2"),
    ("top_p", 0.0, "top_p must be in (0, 1], not 0.0"),
    ("min_p", 1.1, "min_p must be in [0, 1], not 1.1"),
    ("presence_penalty", 2.5, "presence_penalty must be in [-2, 2], not 2.5"),
    ("repetition_penalty", 0, "repetition_penalty must be positive, from 1e-30 to 1e30, not 0"),
    ("logit_bias", {5: 1e308}, "logit_bias must hold finite numbers, from -1e30 to 1e30"),
    ("max_tokens", 0, "max_tokens must be at least 1, not 0"),
    ("min_tokens", 17, "min_tokens (17) is larger than max_tokens (16)"),
    ("seed", -2, "seed must not be negative, not -2"),
    ("logprobs", -2, "logprobs must be at least 0, or -1 for the whole vocabulary, not -2"),
    ("truncate_prompt_tokens", 0, "truncate_prompt_tokens is 0, which leaves no prompt"),
    ("stop", [""], "stop must not contain an empty string"),
    ("bad_words", [""], "bad_words must not contain an empty string"),
    ("bad_words_ids", [[]], "bad_words_ids must not contain an empty list"),
    ("allowed_token_ids", [], "allowed_token_ids is empty"),
    ("stop_token_ids", [5, 2**63], "stop_token_ids holds token id 9223372036854775808, which"),
    ("logit_bias", {-3: 1.0}, "logit_bias, by its keys, holds token id -3"),
    ("early_stopping", "maybe", "early_stopping must be True, False or 'never', not 'maybe'"),
]
WHOLE = ["n", "top_k", "seed", "min_tokens", "max_tokens", "logprobs", "truncate_prompt_tokens"]
REAL = ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty", "length_penalty"]
FLAGS = ["ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens"]
IDS = ["stop_token_ids", "allowed_token_ids"]
LISTS = ["stop", "bad_words", "bad_words_ids", "logits_processors", *IDS]


@pytest.mark.parametrize(("name", "value", "message"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{name: value})
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in WHOLE for value in ("1", True, -1.0, torch.ones(1))),
        *((name, value) for name in REAL for value in ("1", True, 1j, 10**400, Decimal(1))),
        *((name, value) for name in FLAGS for value in ("no", 1, None)),
        *((name, value) for name in LISTS for value in (3, b"ab", {"a": 1}, [None])),
        *((name, value) for name in IDS for value in ("12", [1.0], [True], torch.tensor([True]))),
        *((name, [10**19, value]) for name in IDS for value in (np.arange(2), torch.ones(2), 1.0)),
        *((name, [torch.empty(1, device="meta")]) for name in IDS),
        ("logit_bias", {True: 1.0}),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: "a"}),
        ("logit_bias", {1: 10**400}),
        ("early_stopping", 1.0),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name}\b"):
        SamplingParams(**{name: value})


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    params = SamplingParams(
        n=np.int32(2),
        top_k=np.uint8(5),
        temperature=Fraction(1, 2),
        top_p=np.float32(0.5),
        stop_token_ids=np.array([3, 4]),
        allowed_token_ids=torch.tensor([5, 6]),
        logit_bias={np.int64(7): np.float64(1.5)},
    )
    kinds = {type(value) for value in (params.n, params.top_k, *params.stop_token_ids)}
    assert kinds == {int}
    assert (params.temperature, params.top_p, params.logit_bias) == (0.5, 0.5, {7: 1.5})
    assert params.allowed_token_ids == (5, 6)


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("stop", ["a", "b"]),
        ("allowed_token_ids", [3, 4]),
        ("bad_words_ids", [(3, 4), (5,)]),
        ("logits_processors", [max, min]),
    ],
)
def test_sequences_are_copied_before_they_are_looked_at(name: str, items: list[Any]) -> None:
    def once() -> Iterator[Any]:
        yield from items

    for given in (iter(items), once(), dict.fromkeys(items).keys(), tuple(items), list(items)):
        assert getattr(SamplingParams(**{name: given}), name) == tuple(items)
    assert SamplingParams(stop="ab").stop == ("ab",)


def test_a_list_without_an_end_is_refused() -> None:
    with pytest.raises(RequestError, match="stop_token_ids has more than"):
        SamplingParams(stop_token_ids=itertools.repeat(1))


def test_a_copy_may_have_other_parameters() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0})
    assert params.clone() == params
    assert params.clone(max_tokens=3).max_tokens == 3
    assert params.clone(max_tokens=3).stop == ("a",)
    for copied in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert copied == params
    with pytest.raises(RequestError, match="top_p"):
        params.clone(top_p=2)
    with pytest.raises(TypeError):
        params.clone(top_q=2)


def test_a_stop_string_needs_text() -> None:
    with pytest.raises(RequestError, match="detokenize=False"):
        SamplingParams(stop="a", detokenize=False)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"top_p": 0.9}, {"top_p": 0.9}),
        ({"n": 2, "top_k": 5, "min_p": 0.1}, {"n": 2, "top_k": 5, "min_p": 0.1}),
        ({"top_p": 0.9, "temperature": 0.5}, {}),
        ({"n": 2, "beam_width": 2}, {}),
        ({"seed": 3, "top_k": -1}, {}),
    ],
)
def test_what_has_no_effect_without_a_temperature(
    values: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert SamplingParams(**values).without_effect == expected


# ---------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("prompt", value) for value in ("ab", b"ab", 3, (1.5,), (True,), (-1,), {1: 2})),
        *(("priority", value) for value in (0.5, "high", True, None, 10**400)),
        *(("arrival", value) for value in (float("nan"), "now", None, 10**400)),
        *(("deadline", value) for value in (float("inf"), "now", True)),
        *((name, [1]) for name in ("id", "cache_salt", "tenant")),
        *((name, 3) for name in ("id", "cache_salt", "tenant")),
        *(("sampling", value) for value in (None, {"n": 1}, SamplingParams)),
    ],
)
def test_a_field_of_another_type_or_range_is_refused(name: str, value: Any) -> None:
    fields = {"id": "A", "prompt": (1, 2), name: value}
    with pytest.raises(RequestError, match=f"^{name} "):
        Request(**fields)


@pytest.mark.parametrize("half", ["\ud800", "a\udfffb"])
@pytest.mark.parametrize("name", ["id", "cache_salt", "tenant", "session", "stop", "bad_words"])
def test_half_a_surrogate_pair_is_no_text(name: str, half: str) -> None:
    """None can be sent to an engine in another process, or written."""
    is_sampling = name in ("stop", "bad_words")
    with pytest.raises(RequestError, match=f"{name} holds half of a surrogate pair"):
        SamplingParams(**{name: half}) if is_sampling else Request(
            **{"id": "A", "prompt": (1, 2), name: half}
        )


def test_a_prompt_is_truncated_to_its_last_tokens() -> None:
    for limit, expected in ((2, (4, 5)), (9, (3, 4, 5)), (None, (3, 4, 5))):
        sampling = SamplingParams(truncate_prompt_tokens=limit)
        assert Request(id="A", prompt=(3, 4, 5), sampling=sampling).prompt == expected
