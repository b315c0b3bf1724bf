"""The text of one sequence: stop strings across tokens, and what is safe to stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.text.generation import OutputText
from paged_core.text.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    to_json,
)


class Spelling:
    """A detokenizer whose token ``i`` is the ``i``-th of a list of pieces; it may lag behind."""

    def __init__(self, pieces: Sequence[str], lag: int = 0) -> None:
        self.pieces = pieces
        self.lag = lag
        self.held = ""

    def append(self, token_ids: Sequence[int], /) -> str:
        text = self.held + "".join(self.pieces[token_id] for token_id in token_ids)
        cut = max(0, len(text) - self.lag)
        self.held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        text, self.held = self.held, ""
        return text


def feed(output: OutputText, num_tokens: int) -> str | None:
    for token_id in range(num_tokens):
        found = output.append([token_id])
        if found is not None:
            return found
    return output.finish()


@pytest.mark.parametrize(
    ("stop", "found", "text"),
    [
        (["bc", "b"], "b", "a"),  # complete first
        (["c", "abc", "bc"], "abc", ""),  # complete together: the longest
        (["zz"], None, "abcd"),
    ],
)
def test_which_of_several_counts(stop: list[str], found: str | None, text: str) -> None:
    for pieces in (["abcd"], list("abcd"), ["ab", "cd"]):
        output = OutputText(Spelling(pieces), stop)
        assert feed(output, len(pieces)) == found
        assert output.text == text


def test_min_tokens_hides_what_is_complete_before() -> None:
    output = OutputText(Spelling([".", "a.", ".b"]), [".", ".."], min_tokens=2)
    assert output.append([0]) is None
    assert output.append([1]) is None
    assert output.append([2]) == ".."
    assert output.text == ".a"


def test_nothing_is_added_to_what_has_ended() -> None:
    output = OutputText(Spelling(["a", "b"]), ["a"])
    assert output.append([0]) == "a"
    assert output.finish() is None
    with pytest.raises(ValueError, match="finished"):
        output.append([1])


def test_text_held_back_is_searched_at_the_end() -> None:
    output = OutputText(Spelling(["ab", "c!"], lag=2), ["!"])
    assert output.append([0, 1]) is None
    assert output.finish() == "!"
    assert output.text == "abc"
    plain = OutputText(Spelling(["ab", "c!"], lag=2))
    plain.append([0, 1])
    assert (plain.take(), plain.finish(), plain.take()) == ("ab", None, "c!")


texts = st.text(alphabet="ab.", max_size=12)


THINK = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("outside", "said", "found", "text"),
    [
        (THINK, " <think>a:</think>b:c", ":", " <think>a:</think>b"),
        (THINK, "<think>a:b", None, "<think>a:b"),
        (THINK, "<thin:<think>", ":", "<thin"),
        (THINK, "a<think>b:", ":", "a<think>b"),
        (THINK[1:], "a:</think>:", ":", "a:</think>"),
        (THINK[1:], "a:b", None, "a:b"),
        ((), "a:</think>", ":", "a"),
    ],
)
def test_stop_strings_count_outside_of_marks(
    outside: Sequence[str], said: str, found: str | None, text: str
) -> None:
    for pieces in ([said], list(said), [said[:9], said[9:]]):
        output = OutputText(Spelling(pieces), ":", stop_outside=outside)
        assert (feed(output, len(pieces)), output.text) == (found, text)


@pytest.mark.parametrize(("keeps", "text"), [(False, "a"), (True, "a<end>")])
def test_a_hidden_token_may_be_a_stop_string(keeps: bool, text: str) -> None:
    output = OutputText(
        Spelling(["a", "", "", "b"], lag=1),
        ["<end>"],
        stop_tokens={2: "<end>"},
        include_stop_str_in_output=keeps,
    )
    assert (feed(output, 4), output.text) == ("<end>", text)


@given(
    st.lists(texts, min_size=1, max_size=8),
    st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), max_size=3),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 4),
)
def test_streaming_never_takes_back(
    pieces: list[str], stop: list[str], keep: bool, lag: int, min_tokens: int
) -> None:
    output = OutputText(
        Spelling(pieces, lag), stop, include_stop_str_in_output=keep, min_tokens=min_tokens
    )
    whole = "".join(pieces)
    taken = ""
    found = None
    for token_id in range(len(pieces)):
        found = output.append([token_id])
        taken += output.take()
        assert output.text.startswith(taken)
        if found is not None:
            break
    else:
        found = output.finish()
        taken += output.take()
    assert taken == output.text
    assert whole.startswith(output.text)
    if found is None:
        assert output.text == whole
        assert min_tokens or not any(string in whole for string in stop)
    elif not min_tokens:
        ends = [whole.find(string) + len(string) for string in stop if string in whole]
        start = min(ends) - len(found)
        assert whole[start : min(ends)] == found
        assert output.text == whole[: min(ends) if keep else start]


def test_a_probability_of_zero_is_a_number_in_json() -> None:
    entry = {5: Logprob(-0.5), 9: Logprob(-inf)}
    completion = CompletionOutput(index=0, token_ids=[5], logprobs=[entry])
    output = RequestOutput(
        request_id="7",
        prompt=None,
        prompt_token_ids=[1, 2],
        num_cached_tokens=0,
        outputs=[completion],
        finished=False,
        metrics=RequestMetrics(arrival=0.0),
    )
    written = json.loads(json.dumps(to_json(output), allow_nan=False))
    assert written["outputs"][0]["logprobs"] == [{"5": -0.5, "9": -9999.0}]
