"""Whatever the Python API is given: a result or a `PagedCoreError`, and nothing left behind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from paged_core import LLM, PagedCoreError, Request, RequestOutput, SamplingParams
from properties.profile import Length, lengths

pytestmark = pytest.mark.heavy

NEIGHBOUR = "What is a block table?"
_PARAMETERS = [field.name for field in fields(SamplingParams)]
_FIELDS = [field.name for field in fields(Request)]


class _Talkative:
    def __repr__(self) -> str:
        return "line\n" * 300


def _endless() -> Iterator[int]:
    return itertools.repeat(7)


_numbers = st.one_of(
    st.integers(-3, 20),
    st.builds(lambda digits: 10**digits, st.sampled_from([9, 12, 18, 19, 20, 400, 5000])),
    st.builds(lambda digits: -(10**digits), st.sampled_from([9, 19, 400, 5000])),
    st.floats(),
    st.sampled_from([Decimal(3), Fraction(1, 3), 1j, True, False]),
    st.sampled_from([np.int8(3), np.float16(0.5), np.float64("nan"), np.bool_(True), np.uint64(9)]),
    st.sampled_from([torch.tensor(2), torch.tensor(0.5), torch.tensor(True)]),
)
_leaves = st.one_of(
    st.none(),
    _numbers,
    st.text(max_size=5),
    st.sampled_from(["\ud800", "\0", "no", "never", "a" * 10_000]),
    st.binary(max_size=3),
    st.builds(_Talkative),
    st.builds(object),
    st.sampled_from([max, int, SamplingParams, SamplingParams(), Exception(), ...]),
    st.builds(lambda: np.array([3, 4])),
    st.builds(lambda: np.array(3)),
    st.builds(lambda: torch.tensor([3, 4])),
    st.builds(lambda: torch.tensor([0.5])),
    st.builds(lambda: torch.empty(2, device="meta")),
)
_keys = st.one_of(st.text(max_size=3), st.integers(-3, 9), st.none(), st.just("prompt_token_ids"))
_ids = st.lists(st.integers(0, 30), max_size=5)
_containers: list[Callable[[list[Any]], Any]] = [
    list, tuple, iter, lambda items: dict(enumerate(items)), lambda items: (x for x in items),
]  # fmt: skip
anything = st.recursive(
    st.one_of(_leaves, _ids, st.lists(st.text(max_size=4), max_size=3)),
    lambda inner: st.one_of(
        st.builds(
            lambda make, items: make(items),
            st.sampled_from(_containers),
            st.lists(inner, max_size=3),
        ),
        st.dictionaries(_keys, inner, max_size=3),
    ),
    max_leaves=6,
)
_likely: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 3),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=2),
    "bad_words": st.lists(st.text(min_size=1, max_size=4), max_size=3),
    "bad_words_ids": st.lists(_ids, max_size=2),
    "logit_bias": st.dictionaries(st.integers(0, 90), st.floats(), max_size=3),
    "logits_processors": st.lists(st.sampled_from([max, lambda _, logits: logits]), max_size=2),
    "truncate_prompt_tokens": st.integers(-1, 5),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), _ids),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), st.integers(-1, 5)),
    **dict.fromkeys(("n", "best_of", "beam_width"), st.integers(1, 4)),
}
parameters = st.lists(
    st.sampled_from(_PARAMETERS).flatmap(
        lambda name: st.tuples(st.just(name), _likely.get(name, anything) | anything)
    ),
    max_size=4,
).map(dict)
_messages = st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls"]),
    st.one_of(
        st.just("user"),
        st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)})),
        anything,
    ),
)
conversations = st.one_of(st.lists(_messages, max_size=3), anything)
_ADDED = ("request_id", "priority", "tenant", "deadline", "cache_salt")
_OPTIONS = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "use_tqdm",
)
_options = st.dictionaries(
    st.sampled_from(_OPTIONS),
    st.one_of(st.booleans(), st.just("{{ messages[0].content }}"), anything),
    max_size=3,
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(num_blocks=100) as made:
        yield made


def refused(call: Callable[[], Any]) -> bool:
    """Return whether it ends with an error of ours; any other propagates."""
    try:
        call()
    except PagedCoreError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return True
    return False


def made(values: dict[str, Any]) -> SamplingParams | None:
    """Return short parameters of these values, if they are accepted."""
    try:
        return SamplingParams(**values).clone(max_tokens=3, min_tokens=0)
    except PagedCoreError:
        return None


def check_idle(llm: LLM, expected: RequestOutput) -> None:
    """Nothing is left behind, and the engine answers as before."""
    assert not llm.engine.has_unfinished
    assert llm.engine.kv_cache.num_free == llm.engine.kv_cache.num_blocks
    (output,) = llm.generate(NEIGHBOUR, SamplingParams(max_tokens=4))
    assert output.outputs == expected.outputs


def check_parameters(values: dict[str, Any]) -> None:
    if not refused(lambda: SamplingParams(**values)):
        hash(SamplingParams().stop)


def check_request(name: str, value: Any) -> None:
    refused(lambda: Request(**{"id": "A", "prompt": (1,), name: value}))


def check_generate(llm: LLM, prompts: Any, values: dict[str, Any], more: dict[str, Any]) -> None:
    (expected,) = llm.generate(NEIGHBOUR, SamplingParams(max_tokens=4))
    sampling = made(values)
    refused(lambda: llm.generate(prompts, sampling, **more))
    if sampling is not None:
        short = SamplingParams(max_tokens=4)
        refused(lambda: llm.generate([NEIGHBOUR, [5, 6]], [short, sampling]))
        try:
            outputs = llm.generate([NEIGHBOUR, [5, 6]], [short, sampling])
        except PagedCoreError:
            pass
        else:
            assert outputs[0].outputs == expected.outputs, "a neighbour was changed"
    check_idle(llm, expected)


def check_chat(llm: LLM, messages: Any, options: dict[str, Any]) -> None:
    (expected,) = llm.generate(NEIGHBOUR, SamplingParams(max_tokens=4))
    refused(lambda: llm.chat(messages, SamplingParams(max_tokens=2), **options))
    check_idle(llm, expected)


def check_pin(llm: LLM, prompt: Any, given: dict[str, Any]) -> None:
    (expected,) = llm.generate(NEIGHBOUR, SamplingParams(max_tokens=4))
    refused(lambda: llm.release(llm.pin_prefix(prompt, **given)))
    assert not llm.engine.pins
    assert not llm.engine.kv_cache.num_pinned
    check_idle(llm, expected)


def check_fields(llm: LLM, given: dict[str, Any]) -> None:
    (expected,) = llm.generate(NEIGHBOUR, SamplingParams(max_tokens=4))

    def add() -> None:
        llm.abort([llm.add(NEIGHBOUR, **given)])

    refused(add)
    check_idle(llm, expected)


CALLS: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "generate": (
        check_generate,
        (anything, parameters, st.dictionaries(st.just("priority"), anything)),
    ),
    "chat": (check_chat, (conversations, _options)),
    "request fields": (check_fields, (st.dictionaries(st.sampled_from(_ADDED), anything),)),
    "pins": (
        check_pin,
        (
            anything | st.just([7] * 40),
            st.dictionaries(st.sampled_from(["ttl", "cache_salt"]), anything),
        ),
    ),
}


@lengths(120, 20_000)
def test_sampling_parameters(length: Length) -> None:
    length.check(check_parameters, parameters)


@lengths(120, 20_000)
def test_requests(length: Length) -> None:
    length.check(check_request, st.sampled_from(_FIELDS), anything)


@pytest.mark.parametrize(("check", "strategies"), CALLS.values(), ids=CALLS)
@lengths(50, 2000)
def test_calls(length: Length, check: Callable[..., None], strategies: Any, llm: LLM) -> None:
    def is_answered(given: tuple[Any, ...]) -> None:
        check(llm, *given)

    length.check(is_answered, st.tuples(*strategies))


@pytest.mark.parametrize("make", [_endless, itertools.count], ids=["repeat", "count"])
def test_an_iterator_without_an_end_is_refused(llm: LLM, make: Callable[[], Any]) -> None:
    for call in (
        lambda: llm.generate(make()),
        lambda: llm.generate([make()]),
        lambda: llm.generate("a", make()),
        lambda: llm.generate("a", priority=make()),
        lambda: llm.chat(make()),
        lambda: Request(id="A", prompt=make()),
    ):
        assert refused(call)
