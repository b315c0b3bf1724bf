"""What is no field of a request is refused when the request is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paged_core.errors import RequestError
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("prompt", value) for value in ("ab", b"ab", 3, (1.5,), (True,), (-1,), {1: 2})),
        *(("priority", value) for value in (NAN, 0.5, "high", True, None, 10**400)),
        *(("arrival", value) for value in (NAN, float("inf"), "now", None, 10**400)),
        *(("deadline", value) for value in (NAN, float("inf"), "now", True, 10**400)),
        *((name, [1]) for name in ("id", "cache_salt", "tenant")),
        *((name, 3) for name in ("id", "cache_salt", "tenant")),
        *(("sampling", value) for value in (None, {"n": 1}, SamplingParams)),
    ],
)
def test_a_field_of_another_type_or_range_is_refused(name: str, value: Any) -> None:
    fields = {"id": "A", "prompt": (1, 2), name: value}
    with pytest.raises(RequestError, match=f"^{name} "):
        Request(**fields)


def test_a_prompt_is_copied() -> None:
    for given in ([1, 2], iter([1, 2]), range(1, 3), np.array([1, 2])):
        prompt = Request(id="A", prompt=given).prompt  # type: ignore[arg-type]
        assert prompt == (1, 2)
        assert {type(token) for token in prompt} == {int}


def test_a_prompt_is_truncated_to_its_last_tokens() -> None:
    for limit, expected in ((2, (4, 5)), (9, (3, 4, 5)), (None, (3, 4, 5))):
        sampling = SamplingParams(truncate_prompt_tokens=limit)
        assert Request(id="A", prompt=(3, 4, 5), sampling=sampling).prompt == expected
